/* Preloaded into slurmctld: it looks for jobs to start every 0.1 s instead of every second, and at once for jobs whose time
   is over, which it does every 30 s, when the file $LLMB_DUE appears. */
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { TENTH_OF_LOOP = 100000, QUICK = 10000, ROUNDS = 20, LONG_AGO = 60 };

static volatile int due;

int usleep(useconds_t microseconds) {
    if (microseconds == TENTH_OF_LOOP) {
        const char *file = getenv("LLMB_DUE");
        microseconds = QUICK;
        if (due > 0) due--;
        if (file && unlink(file) == 0) due = ROUNDS;
    }
    struct timespec pause = {microseconds / 1000000, microseconds % 1000000 * 1000L};
    return nanosleep(&pause, NULL);
}

double difftime(time_t later, time_t earlier) { return (double)(later - earlier) + (due ? LONG_AGO : 0); }
