/* Sleep as the system does. libfaketime 0.9.10 shifts the end of a sleep by the monotonic clock, too, although it is told
 * to leave that clock alone: time.sleep() of Python fails then with EINVAL, or does not end. For tests/isolation. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *request, struct timespec *left) {
    return syscall(SYS_clock_nanosleep, clock, flags, request, left) ? errno : 0;
}
