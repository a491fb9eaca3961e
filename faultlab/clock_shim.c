/* Shifts the wall clock of the processes it is preloaded into: time = now + offset + (rate - 1) * (now - base).
 *
 * The file named by PSCHED_TEST_CLOCK is mapped, so a change takes effect at once in all processes, forked ones
 * included. The writer fills the setting that is not current, then makes it current. Monotonic clocks are untouched.
 * Built and written by clock.py.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

struct setting { int64_t base, offset; double rate; };  /* nanoseconds */
struct page { uint64_t current; struct setting settings[2]; };

static const struct page *page;

__attribute__((constructor)) static void map_page(void) {
    const char *path = getenv("PSCHED_TEST_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *page, PROT_READ, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) {
        static const char message[] = "clock_shim: PSCHED_TEST_CLOCK names no clock file\n";
        if (write(2, message, sizeof message - 1)) {}
        _exit(127);
    }
    close(file);
    page = mapped;
}

static int64_t shifted(int64_t now) {
    const struct setting *setting = &page->settings[__atomic_load_n(&page->current, __ATOMIC_ACQUIRE) & 1];
    return now + setting->offset + (int64_t)((setting->rate - 1) * (double)(now - setting->base));
}

int clock_gettime(clockid_t clock, struct timespec *spec) {
    int result = (int)syscall(SYS_clock_gettime, clock, spec);
    if (result == 0 && page && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t now = shifted(spec->tv_sec * SECOND + spec->tv_nsec);
        spec->tv_sec = now / SECOND;
        spec->tv_nsec = now % SECOND;
    }
    return result;
}

int gettimeofday(struct timeval *restrict value, void *restrict zone) {
    struct timespec spec;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &spec) != 0) return -1;
    value->tv_sec = spec.tv_sec;
    value->tv_usec = spec.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec spec;
    clock_gettime(CLOCK_REALTIME, &spec);
    if (result) *result = spec.tv_sec;
    return spec.tv_sec;
}
