/* Preloaded, lets chosen calls of one process fail: the k-th call below some folders, or the k-th allocation.
   The process that counts is the one that armed it. Nothing is allocated here. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define KIND_BYTES 16
#define PATH_BYTES 240
#define MOST_CALLS 60000

enum { OFF, ONCE, FROM, HALF, COUNT };

/* One call, as Python reads it. */
struct call { char kind[KIND_BYTES]; char path[PATH_BYTES]; };

static struct call *calls;                 /* shared with the process that looks at them afterwards */
static atomic_long *counted, *struck;      /* calls so far; the first that failed, 0 for none */
static char prefixes[4096], kinds[512];
static pid_t owner;
static int mode, error_number;
static long wanted, wanted_allocation, last_allocation;
static atomic_long allocations;
static int counting_allocations;

void llmb_faults_share(void *memory) {
    counted = memory;
    struck = counted + 1;
    calls = (struct call *)((char *)memory + 64);
}

/* `of` has the folders, `only` the kinds that count, both with newlines between and at the end; no kind: all. */
void llmb_faults_arm(long at, int how, int number, const char *of, const char *only) {
    snprintf(prefixes, sizeof prefixes, "%s", of);
    snprintf(kinds, sizeof kinds, "%s", only);
    wanted = at; error_number = number; owner = getpid();
    atomic_store(counted, 0); atomic_store(struck, 0);
    mode = how;
}

void llmb_faults_arm_allocations(long first, long last) {
    owner = getpid();
    wanted_allocation = first; last_allocation = last;
    atomic_store(&allocations, 0);
    counting_allocations = 1;
}

long llmb_faults_disarm(void) { mode = OFF; counting_allocations = 0; return atomic_load(&allocations); }

static int is_below(const char *path) {
    for (const char *at = prefixes; *at; ) {
        const char *end = strchr(at, '\n');
        if (strncmp(path, at, end - at) == 0) return 1;
        at = end + 1;
    }
    return 0;
}

static int is_wanted(const char *kind) {
    size_t size = strlen(kind);
    if (!*kinds) return 1;
    for (const char *at = kinds; *at; at = strchr(at, '\n') + 1)
        if (strncmp(at, kind, size) == 0 && at[size] == '\n') return 1;
    return 0;
}

/* 0: as ever, 1: fail with errno set, 2: only half of it. */
static int strike(const char *kind, const char *path) {
    if (getpid() != owner || !is_below(path) || !is_wanted(kind)) return 0;
    long number = atomic_fetch_add(counted, 1) + 1;
    if (number < MOST_CALLS) {
        snprintf(calls[number].kind, KIND_BYTES, "%s", kind);
        snprintf(calls[number].path, PATH_BYTES, "%s", path);
    }
    if (mode == COUNT || number < wanted || (number > wanted && mode != FROM)) return 0;
    if (number == wanted) atomic_store(struck, number);
    errno = error_number;
    return mode == HALF ? 2 : 1;
}

static int strike_path(const char *kind, int folder, const char *path) {
    char whole[2 * PATH_MAX], name[64];
    int before = errno, result;
    ssize_t size;
    if (mode == OFF || !path) return 0;
    if (path[0] == '/') result = strike(kind, path);
    else {
        if (folder == AT_FDCWD) snprintf(name, sizeof name, "/proc/self/cwd");
        else snprintf(name, sizeof name, "/proc/self/fd/%d", folder);
        size = readlink(name, whole, PATH_MAX);
        if (size < 0) size = 0;
        whole[size] = '/';
        snprintf(whole + size + 1, PATH_MAX, "%s", path);
        result = strike(kind, whole);
    }
    if (!result) errno = before;
    return result;
}

static int strike_handle(const char *kind, int handle) {
    char whole[PATH_MAX + 1], name[64];
    int before = errno, result;
    if (mode == OFF) return 0;
    snprintf(name, sizeof name, "/proc/self/fd/%d", handle);
    ssize_t size = readlink(name, whole, PATH_MAX);
    whole[size < 0 ? 0 : size] = 0;
    result = strike(kind, whole);
    if (!result) errno = before;
    return result;
}

#define NEXT(name) static __typeof__(name) *next; if (!next) next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

#define OPENING(name, kind_parameters, folder, call_with_mode) \
    int name kind_parameters { \
        NEXT(name); \
        mode_t rights = 0; \
        if (flags & (O_CREAT | __O_TMPFILE)) { va_list rest; va_start(rest, flags); rights = va_arg(rest, int); va_end(rest); } \
        if (strike_path(flags & O_CREAT ? "create" : "open", folder, path) == 1) return -1; \
        return next call_with_mode; \
    }
OPENING(open, (const char *path, int flags, ...), AT_FDCWD, (path, flags, rights))
OPENING(open64, (const char *path, int flags, ...), AT_FDCWD, (path, flags, rights))
OPENING(openat, (int at, const char *path, int flags, ...), at, (at, path, flags, rights))
OPENING(openat64, (int at, const char *path, int flags, ...), at, (at, path, flags, rights))

FILE *fopen(const char *path, const char *how) {
    NEXT(fopen);
    return strike_path(how[0] == 'r' ? "open" : "create", AT_FDCWD, path) == 1 ? NULL : next(path, how);
}
FILE *fopen64(const char *path, const char *how) {
    NEXT(fopen64);
    return strike_path(how[0] == 'r' ? "open" : "create", AT_FDCWD, path) == 1 ? NULL : next(path, how);
}

#define MOVING(type, name, kind, parameters, arguments) \
    type name parameters { \
        NEXT(name); \
        int struck_now = strike_handle(kind, handle); \
        if (struck_now == 1) return -1; \
        if (struck_now == 2 && size > 1) size = size / 2; \
        return next arguments; \
    }
MOVING(ssize_t, read, "read", (int handle, void *data, size_t size), (handle, data, size))
MOVING(ssize_t, pread, "read", (int handle, void *data, size_t size, off_t at), (handle, data, size, at))
MOVING(ssize_t, pread64, "read", (int handle, void *data, size_t size, off64_t at), (handle, data, size, at))
MOVING(ssize_t, write, "write", (int handle, const void *data, size_t size), (handle, data, size))
MOVING(ssize_t, pwrite, "write", (int handle, const void *data, size_t size, off_t at), (handle, data, size, at))
MOVING(ssize_t, pwrite64, "write", (int handle, const void *data, size_t size, off64_t at), (handle, data, size, at))

#define ON_HANDLE(type, name, kind, failure, parameters, arguments) \
    type name parameters { \
        NEXT(name); \
        return strike_handle(kind, handle) == 1 ? failure : next arguments; \
    }
ON_HANDLE(int, fsync, "fsync", -1, (int handle), (handle))
ON_HANDLE(int, fdatasync, "fsync", -1, (int handle), (handle))
ON_HANDLE(int, ftruncate, "truncate", -1, (int handle, off_t size), (handle, size))
ON_HANDLE(int, ftruncate64, "truncate", -1, (int handle, off64_t size), (handle, size))
ON_HANDLE(int, flock, "lock", -1, (int handle, int what), (handle, what))
ON_HANDLE(int, fstat, "stat", -1, (int handle, struct stat *status), (handle, status))
ON_HANDLE(int, fstat64, "stat", -1, (int handle, struct stat64 *status), (handle, status))
ON_HANDLE(DIR *, fdopendir, "readdir", NULL, (int handle), (handle))
ON_HANDLE(void *, mmap, "mmap", MAP_FAILED, (void *to, size_t size, int rights, int flags, int handle, off_t at),
          (to, size, rights, flags, handle, at))

int close(int handle) {
    NEXT(close);
    int struck_now = strike_handle("close", handle), number = errno;
    int result = next(handle); /* as in the kernel: closed all the same */
    if (struck_now == 1) { errno = number; return -1; }
    return result;
}

#define LOCKING(name) \
    int name(int handle, int what, ...) { \
        NEXT(name); \
        va_list rest; va_start(rest, what); void *value = va_arg(rest, void *); va_end(rest); \
        int locks = what == F_SETLK || what == F_SETLKW || what == F_OFD_SETLK || what == F_OFD_SETLKW; \
        if (locks && ((struct flock *)value)->l_type != F_UNLCK && strike_handle("lock", handle) == 1) return -1; \
        return next(handle, what, value); \
    }
LOCKING(fcntl)
LOCKING(fcntl64)

#define ON_PATH(type, name, kind, failure, folder, path, parameters, arguments) \
    type name parameters { \
        NEXT(name); \
        return strike_path(kind, folder, path) == 1 ? failure : next arguments; \
    }
ON_PATH(int, stat, "stat", -1, AT_FDCWD, path, (const char *path, struct stat *status), (path, status))
ON_PATH(int, stat64, "stat", -1, AT_FDCWD, path, (const char *path, struct stat64 *status), (path, status))
ON_PATH(int, lstat, "stat", -1, AT_FDCWD, path, (const char *path, struct stat *status), (path, status))
ON_PATH(int, lstat64, "stat", -1, AT_FDCWD, path, (const char *path, struct stat64 *status), (path, status))
ON_PATH(int, fstatat, "stat", -1, at, path, (int at, const char *path, struct stat *status, int flags),
        (at, path, status, flags))
ON_PATH(int, fstatat64, "stat", -1, at, path, (int at, const char *path, struct stat64 *status, int flags),
        (at, path, status, flags))
ON_PATH(int, access, "access", -1, AT_FDCWD, path, (const char *path, int rights), (path, rights))
ON_PATH(int, faccessat, "access", -1, at, path, (int at, const char *path, int rights, int flags),
        (at, path, rights, flags))
ON_PATH(ssize_t, readlink, "readlink", -1, AT_FDCWD, path, (const char *path, char *data, size_t size),
        (path, data, size))
ON_PATH(ssize_t, readlinkat, "readlink", -1, at, path, (int at, const char *path, char *data, size_t size),
        (at, path, data, size))
ON_PATH(DIR *, opendir, "readdir", NULL, AT_FDCWD, path, (const char *path), (path))
ON_PATH(int, rename, "rename", -1, AT_FDCWD, to, (const char *from, const char *to), (from, to))
ON_PATH(int, renameat, "rename", -1, there, to, (int at, const char *from, int there, const char *to),
        (at, from, there, to))
ON_PATH(int, unlink, "unlink", -1, AT_FDCWD, path, (const char *path), (path))
ON_PATH(int, unlinkat, "unlink", -1, at, path, (int at, const char *path, int flags), (at, path, flags))
ON_PATH(int, rmdir, "unlink", -1, AT_FDCWD, path, (const char *path), (path))
ON_PATH(int, mkdir, "mkdir", -1, AT_FDCWD, path, (const char *path, mode_t rights), (path, rights))
ON_PATH(int, mkdirat, "mkdir", -1, at, path, (int at, const char *path, mode_t rights), (at, path, rights))
ON_PATH(int, chmod, "chmod", -1, AT_FDCWD, path, (const char *path, mode_t rights), (path, rights))

struct dirent *readdir(DIR *folder) {
    NEXT(readdir);
    return strike_handle("readdir", dirfd(folder)) == 1 ? NULL : next(folder);
}
struct dirent64 *readdir64(DIR *folder) {
    NEXT(readdir64);
    return strike_handle("readdir", dirfd(folder)) == 1 ? NULL : next(folder);
}

/* --- allocations ----------------------------------------------------------------------------------------- */

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);

static int lacks_memory(void) {
    if (!counting_allocations) return 0;
    long number = atomic_fetch_add(&allocations, 1) + 1;
    if (number < wanted_allocation || number >= last_allocation) return 0;
    if (getpid() != owner) return 0;
    errno = ENOMEM;
    return 1;
}
void *malloc(size_t size) { return lacks_memory() ? NULL : __libc_malloc(size); }
void *calloc(size_t number, size_t size) { return lacks_memory() ? NULL : __libc_calloc(number, size); }
void *realloc(void *old, size_t size) { return lacks_memory() ? NULL : __libc_realloc(old, size); }
