/* System calls that fail on demand. tests/robustness/faults preloads this library into Python.

   Between faults_arm and faults_disarm it counts calls in all threads and forked children: calls on
   files below one folder, on our memory files, on /dev/fuse and on one given descriptor. The calls
   of one kind with the numbers first to last fail with an errno, or transfer less than was asked
   for (SHORT), or return nothing (NONE, for io_submit and io_getevents). Memory is filled with a
   pattern before a read, so that bytes that were never read do not look right by chance.

   The library also replaces libaio, and has libaio's name (soname). libaio's functions are only
   wrappers of system calls. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/aio_abi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum call {
    OPEN, READ, WRITE, FSYNC, RENAME, LINK, TRUNCATE, SENDFILE, COPY, IOCTL, ALLOCATE, LOCK,
    CACHESTAT, IO_SETUP, IO_SUBMIT, IO_GETEVENTS, COMPLETION, DISK, CALLS
};
enum { NO_FAULT = 0, SHORT = -1, NONE = -2 }; /* otherwise an errno */

#define PATTERN 0xDB
#define BLOCK 4096
#define SYS_CACHESTAT 451
#define MOST_PIECES 64

static volatile int active;
static volatile int chosen, kind;
static volatile long first, last;
static struct counts {
    long seen[CALLS], made;
} *counts; /* shared with forked processes, so that a single fault happens in only one of them */
static char base[PATH_MAX];
static volatile int watched = -1;
static volatile int skips_syncing;

#define REAL(result, name, ...) static result (*real_##name)(__VA_ARGS__)
REAL(long, syscall, long, ...);
REAL(int, openat64, int, const char *, int, ...);
REAL(ssize_t, read, int, void *, size_t);
REAL(ssize_t, pread64, int, void *, size_t, off64_t);
REAL(ssize_t, readv, int, const struct iovec *, int);
REAL(ssize_t, preadv64, int, const struct iovec *, int, off64_t);
REAL(ssize_t, preadv64v2, int, const struct iovec *, int, off64_t, int);
REAL(ssize_t, write, int, const void *, size_t);
REAL(ssize_t, pwrite64, int, const void *, size_t, off64_t);
REAL(ssize_t, writev, int, const struct iovec *, int);
REAL(int, fsync, int);
REAL(int, fdatasync, int);
REAL(int, syncfs, int);
REAL(int, rename, const char *, const char *);
REAL(int, renameat, int, const char *, int, const char *);
REAL(int, renameat2, int, const char *, int, const char *, unsigned);
REAL(int, link, const char *, const char *);
REAL(int, linkat, int, const char *, int, const char *, int);
REAL(int, ftruncate64, int, off64_t);
REAL(ssize_t, sendfile64, int, int, off64_t *, size_t);
REAL(ssize_t, copy_file_range, int, off64_t *, int, off64_t *, size_t, unsigned);
REAL(int, ioctl, int, unsigned long, ...);
REAL(int, fallocate64, int, int, off64_t, off64_t);
REAL(int, flock, int, int);

static void from_environment(void);

__attribute__((constructor)) static void begin(void)
{
#define FIND(name) real_##name = dlsym(RTLD_NEXT, #name)
    FIND(syscall); FIND(openat64); FIND(read); FIND(pread64); FIND(readv);
    FIND(preadv64); FIND(preadv64v2); FIND(write); FIND(pwrite64); FIND(writev); FIND(fsync);
    FIND(fdatasync); FIND(syncfs); FIND(rename); FIND(renameat); FIND(renameat2); FIND(link); FIND(linkat); FIND(ftruncate64);
    FIND(sendfile64); FIND(copy_file_range); FIND(ioctl); FIND(fallocate64); FIND(flock);
    counts = mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (counts == MAP_FAILED)
        abort();
    from_environment();
}

/* ---- functions for tests ----------------------------------------------------------------- */

void faults_base(const char *folder)
{
    snprintf(base, sizeof base, "%s/", folder);
}

void faults_watch(int fd)
{
    watched = fd;
}

/* Start to count. If call is negative, no call fails. */
void faults_arm(int call, int with, long from, long to)
{
    memset(counts, 0, sizeof *counts);
    chosen = call, kind = with, first = from, last = to;
    __sync_synchronize();
    active = 1;
}

/* Make fsync return at once: these tests do not cut the power, so the disk does not matter. */
void faults_skip_syncing(void) { skips_syncing = 1; }

void faults_disarm(void) { active = 0; }
int faults_pause(void) { return __sync_lock_test_and_set(&active, 0); }
void faults_resume(int was_active) { active = was_active; }
long faults_seen(int call) { return counts->seen[call]; }
long faults_made(void) { return counts->made; }

/* For programs that tests cannot call into: FAULTS=call:kind:first:last FAULTS_BASE=folder */
static void from_environment(void)
{
    int call, with;
    long from, to;
    const char *told = getenv("FAULTS"), *folder = getenv("FAULTS_BASE");
    if (told && folder && sscanf(told, "%d:%d:%ld:%ld", &call, &with, &from, &to) == 4) {
        faults_base(folder);
        faults_arm(call, with, from, to);
    }
}

/* ---- choice of calls --------------------------------------------------------------------- */

static int begins_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

static int is_ours(int fd)
{
    char link[64], path[PATH_MAX];
    long length;
    if (fd == watched)
        return 1;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = real_syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 2);
    if (length <= 0)
        return 0;
    path[length] = '/', path[length + 1] = 0; /* the folder itself is ours too */
    return begins_with(path, base) || begins_with(path, "/memfd:ffrecord") ||
           begins_with(path, "/dev/fuse/");
}

static int is_our_path(int folder, const char *path)
{
    int fd;
    char with_slash[PATH_MAX];
    if (path[0] != '/')
        return folder != AT_FDCWD && is_ours(folder);
    if (sscanf(path, "/proc/self/fd/%d", &fd) == 1)
        return is_ours(fd);
    snprintf(with_slash, sizeof with_slash, "%s/", path);
    return begins_with(with_slash, base) || !strcmp(path, "/dev/fuse");
}

/* Count this call and return its fault. DISK stands for every kind of read. */
static int turn(enum call call)
{
    long number = __sync_fetch_and_add(&counts->seen[call], 1);
    if (call == READ || call == SENDFILE || call == COMPLETION) {
        long of_disk = __sync_fetch_and_add(&counts->seen[DISK], 1);
        if (chosen == DISK)
            call = DISK, number = of_disk;
    }
    if (call != (enum call)chosen || number < first || number > last)
        return NO_FAULT;
    return kind;
}

static int turn_of(enum call call, int fd)
{
    int before = errno, fault = active && is_ours(fd) ? turn(call) : NO_FAULT;
    errno = before;
    return fault;
}

static int turn_of_path(enum call call, int folder, const char *path)
{
    int before = errno, fault = active && is_our_path(folder, path) ? turn(call) : NO_FAULT;
    errno = before;
    return fault;
}

static long fail(int fault)
{
    __sync_fetch_and_add(&counts->made, 1);
    errno = fault;
    return -1;
}

/* Return half of the count, or all of it if half is 0 or too small for O_DIRECT. */
static size_t less(int fd, size_t count)
{
    size_t half = count / 2;
    int flags = fcntl(fd, F_GETFL);
    if (flags >= 0 && flags & O_DIRECT)
        half -= half % BLOCK;
    if (!half)
        return count;
    __sync_fetch_and_add(&counts->made, 1);
    return half;
}

static int cut(const struct iovec *pieces, int count, size_t most, struct iovec *less_of_it)
{
    int kept = 0;
    while (kept < count && kept < MOST_PIECES && most) {
        less_of_it[kept] = pieces[kept];
        if (less_of_it[kept].iov_len > most)
            less_of_it[kept].iov_len = most;
        most -= less_of_it[kept++].iov_len;
    }
    return kept;
}

static size_t total(const struct iovec *pieces, int count)
{
    size_t sum = 0;
    while (count--)
        sum += pieces[count].iov_len;
    return sum;
}

static void scribble(const struct iovec *pieces, int count)
{
    while (count--)
        memset(pieces[count].iov_base, PATTERN, pieces[count].iov_len);
}

/* ---- opening ----------------------------------------------------------------------------- */

static int opened(int folder, const char *path, int flags, mode_t mode)
{
    int fault = turn_of_path(OPEN, folder, path);
    if (fault > 0)
        return fail(fault);
    return real_openat64(folder, path, flags, mode);
}

#define OPENED(folder, path, flags) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | __O_TMPFILE)) { \
        va_list more; \
        va_start(more, flags); \
        mode = va_arg(more, mode_t); \
        va_end(more); \
    } \
    return opened(folder, path, flags, mode);

int open64(const char *path, int flags, ...) { OPENED(AT_FDCWD, path, flags) }
int open(const char *path, int flags, ...) { OPENED(AT_FDCWD, path, flags) }
int openat64(int folder, const char *path, int flags, ...) { OPENED(folder, path, flags) }
int openat(int folder, const char *path, int flags, ...) { OPENED(folder, path, flags) }

/* ---- reading and writing ----------------------------------------------------------------- */

#define READING(fd, pieces, count, whole, part) \
    int fault = turn_of(READ, fd); \
    if (active && is_ours(fd)) \
        scribble(pieces, count); \
    if (fault > 0) \
        return fail(fault); \
    if (fault == SHORT) { \
        struct iovec some[MOST_PIECES]; \
        int kept = cut(pieces, count, less(fd, total(pieces, count)), some); \
        (void)kept; \
        return part; \
    } \
    return whole;

ssize_t read(int fd, void *memory, size_t count)
{
    struct iovec piece = {memory, count};
    READING(fd, &piece, 1, real_read(fd, memory, count), real_read(fd, memory, some[0].iov_len))
}

ssize_t pread64(int fd, void *memory, size_t count, off64_t at)
{
    struct iovec piece = {memory, count};
    READING(fd, &piece, 1, real_pread64(fd, memory, count, at),
            real_pread64(fd, memory, some[0].iov_len, at))
}

ssize_t readv(int fd, const struct iovec *pieces, int count)
{
    READING(fd, pieces, count, real_readv(fd, pieces, count), real_readv(fd, some, kept))
}

ssize_t preadv64(int fd, const struct iovec *pieces, int count, off64_t at)
{
    READING(fd, pieces, count, real_preadv64(fd, pieces, count, at),
            real_preadv64(fd, some, kept, at))
}

ssize_t preadv64v2(int fd, const struct iovec *pieces, int count, off64_t at, int flags)
{
    READING(fd, pieces, count, real_preadv64v2(fd, pieces, count, at, flags),
            real_preadv64v2(fd, some, kept, at, flags))
}

#define WRITING(fd, count, whole, part) \
    int fault = turn_of(WRITE, fd); \
    if (fault > 0) \
        return fail(fault); \
    if (fault == SHORT) { \
        size_t half = less(fd, count); \
        return part; \
    } \
    return whole;

ssize_t write(int fd, const void *memory, size_t count)
{
    WRITING(fd, count, real_write(fd, memory, count), real_write(fd, memory, half))
}

ssize_t pwrite64(int fd, const void *memory, size_t count, off64_t at)
{
    WRITING(fd, count, real_pwrite64(fd, memory, count, at), real_pwrite64(fd, memory, half, at))
}

/* Used for replies to the kernel, which takes a whole reply or nothing: no short counts. */
ssize_t writev(int fd, const struct iovec *pieces, int count)
{
    int fault = turn_of(WRITE, fd);
    return fault > 0 ? fail(fault) : real_writev(fd, pieces, count);
}

ssize_t sendfile64(int to, int from, off64_t *at, size_t count)
{
    int fault = turn_of(SENDFILE, from);
    if (fault > 0)
        return fail(fault);
    return real_sendfile64(to, from, at, fault == SHORT ? less(from, count) : count);
}

ssize_t copy_file_range(int from, off64_t *at, int to, off64_t *there, size_t count, unsigned flags)
{
    int fault = turn_of(COPY, to);
    if (fault > 0)
        return fail(fault);
    count = fault == SHORT ? less(to, count) : count;
    return real_copy_file_range(from, at, to, there, count, flags);
}

/* ---- calls without a count --------------------------------------------------------------- */

#define PLAIN(call, fd, real) \
    int fault = turn_of(call, fd); \
    return fault > 0 ? fail(fault) : real;

int fsync(int fd) { PLAIN(FSYNC, fd, skips_syncing ? 0 : real_fsync(fd)) }
int fdatasync(int fd) { PLAIN(FSYNC, fd, skips_syncing ? 0 : real_fdatasync(fd)) }
int syncfs(int fd) { PLAIN(FSYNC, fd, skips_syncing ? 0 : real_syncfs(fd)) }
int ftruncate64(int fd, off64_t size) { PLAIN(TRUNCATE, fd, real_ftruncate64(fd, size)) }
int ftruncate(int fd, off_t size) { PLAIN(TRUNCATE, fd, real_ftruncate64(fd, size)) }
int flock(int fd, int how) { PLAIN(LOCK, fd, real_flock(fd, how)) }

int fallocate64(int fd, int mode, off64_t at, off64_t count)
{
    PLAIN(ALLOCATE, fd, real_fallocate64(fd, mode, at, count))
}

int ioctl(int fd, unsigned long request, ...)
{
    va_list more;
    va_start(more, request);
    void *argument = va_arg(more, void *);
    va_end(more);
    PLAIN(IOCTL, fd, real_ioctl(fd, request, argument))
}

int rename(const char *from, const char *to)
{
    int fault = turn_of_path(RENAME, AT_FDCWD, to);
    return fault > 0 ? fail(fault) : real_rename(from, to);
}

int renameat(int folder, const char *from, int other, const char *to)
{
    int fault = turn_of_path(RENAME, other, to);
    return fault > 0 ? fail(fault) : real_renameat(folder, from, other, to);
}

int renameat2(int folder, const char *from, int other, const char *to, unsigned flags)
{
    int fault = turn_of_path(RENAME, other, to);
    return fault > 0 ? fail(fault) : real_renameat2(folder, from, other, to, flags);
}

int link(const char *from, const char *to)
{
    int fault = turn_of_path(LINK, AT_FDCWD, to);
    return fault > 0 ? fail(fault) : real_link(from, to);
}

int linkat(int folder, const char *from, int other, const char *to, int flags)
{
    int fault = turn_of_path(LINK, other, to);
    return fault > 0 ? fail(fault) : real_linkat(folder, from, other, to, flags);
}

long syscall(long number, ...)
{
    long a[6];
    va_list more;
    va_start(more, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(more, long);
    va_end(more);
    if (number == SYS_CACHESTAT) {
        int fault = turn_of(CACHESTAT, (int)a[0]);
        if (fault > 0)
            return fail(fault);
    }
    return real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* ---- libaio: functions return a negative errno ------------------------------------------- */

static long aio_fail(int fault)
{
    fail(fault);
    return -fault;
}

static long aio_result(long result) { return result < 0 ? -errno : result; }

int io_setup(int count, aio_context_t *context)
{
    int fault = active ? turn(IO_SETUP) : NO_FAULT;
    return fault > 0 ? aio_fail(fault) : aio_result(real_syscall(SYS_io_setup, count, context));
}

int io_destroy(aio_context_t context) { return aio_result(real_syscall(SYS_io_destroy, context)); }

int io_submit(aio_context_t context, long count, struct iocb **iocbs)
{
    int fault = active ? turn(IO_SUBMIT) : NO_FAULT;
    if (active)
        for (long i = 0; i < count; i++)
            memset((void *)iocbs[i]->aio_buf, PATTERN, iocbs[i]->aio_nbytes);
    if (fault > 0)
        return aio_fail(fault);
    if (fault == NONE || (fault == SHORT && count > 1))
        __sync_fetch_and_add(&counts->made, 1);
    if (fault == NONE)
        return 0;
    if (fault == SHORT && count > 1)
        count /= 2;
    return aio_result(real_syscall(SYS_io_submit, context, count, iocbs));
}

/* Make a completed read look as if it had failed or read less: change its result and memory. */
static void spoil(struct io_event *event)
{
    int fault = turn(COMPLETION);
    struct iocb *iocb = (struct iocb *)event->obj;
    char *memory = (char *)iocb->aio_buf;
    if (fault == NO_FAULT || event->res <= 1)
        return;
    __sync_fetch_and_add(&counts->made, 1);
    event->res = fault > 0 ? -fault : fault == SHORT ? event->res / 2 : 0;
    size_t whole = event->res < 0 ? 0 : event->res;
    memset(memory + whole, PATTERN, iocb->aio_nbytes - whole);
}

int io_getevents(
    aio_context_t context, long least, long most, struct io_event *events, struct timespec *wait)
{
    int fault = active ? turn(IO_GETEVENTS) : NO_FAULT;
    if (fault > 0)
        return aio_fail(fault);
    if (fault == NONE) {
        __sync_fetch_and_add(&counts->made, 1);
        return 0;
    }
    if (fault == SHORT && most > 1) {
        __sync_fetch_and_add(&counts->made, 1);
        most = 1, least = least ? 1 : 0;
    }
    long count = aio_result(real_syscall(SYS_io_getevents, context, least, most, events, wait));
    for (long i = 0; active && i < count; i++)
        spoil(&events[i]);
    return count;
}

/* The Python package libaio looks these up when it is loaded. Nothing calls them. */
int io_queue_init(int count, aio_context_t *context) { return io_setup(count, context); }
int io_queue_release(aio_context_t context) { return io_destroy(context); }
int io_queue_run(aio_context_t context) { (void)context; return -ENOSYS; }
int io_cancel(aio_context_t context, struct iocb *iocb, struct io_event *event)
{
    (void)context, (void)iocb, (void)event;
    return -ENOSYS;
}
