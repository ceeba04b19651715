/* Preloaded into a node: its wall clock and its fsync as a file says that the run maps and writes.
 *
 *     cc -shared -fPIC -O2 -o shim.so shim.c; LD_PRELOAD=shim.so CHAOS_CONTROL=FILE …
 *
 * The file: two 64-bit integers in the byte order of the machine: seconds added to the wall clock, and the errno
 * that fsync and fdatasync fail with (0: they do not; -1: they do not end until it is another). Unlike libfaketime it can jump while the node runs without
 * looking at a file each time, and unlike `strace -e inject` it does not stop the node at every system call. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct control { volatile int64_t clock_s, fsync_errno; };
enum { HANGS = -1, LOOK_EVERY_US = 10000 };
static const struct control *control;

__attribute__((constructor)) static void attach(void) {
    const char *path = getenv("CHAOS_CONTROL");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *page = mmap(NULL, sizeof(struct control), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (page != MAP_FAILED) control = page;
}

static int is_wall(clockid_t id) { return id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE; }

int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, now);
    if (!result && control && is_wall(id)) now->tv_sec += control->clock_s;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    static int (*real)(struct timeval *, void *);
    if (!real) real = dlsym(RTLD_NEXT, "gettimeofday");
    int result = real(now, zone);
    if (!result && control) now->tv_sec += control->clock_s;
    return result;
}

time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into) *into = now.tv_sec;
    return now.tv_sec;
}

#define FAILING(name)                                            \
    int name(int fd) {                                           \
        static int (*real)(int);                                 \
        if (!real) real = dlsym(RTLD_NEXT, #name);               \
        while (control && control->fsync_errno == HANGS)         \
            usleep(LOOK_EVERY_US);                               \
        if (control && control->fsync_errno) {                   \
            errno = (int)control->fsync_errno;                   \
            return -1;                                           \
        }                                                        \
        return real(fd);                                         \
    }
FAILING(fsync)
FAILING(fdatasync)
