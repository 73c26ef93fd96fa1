/*
 * What Rust's standard library calls at every start and every file, and what takes musl more calls of the kernel than it
 * needs.
 */

#define _GNU_SOURCE
#include <pthread.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* fcntl.h has macros by these names in some versions. */
#define AT_FDCWD (-100)

/* Opens a file with one call: musl's make a second one for kernels before 2.6.23. A word has room for large files. */
int openat64(int folder, const char *path, int flags, unsigned mode)
{
	return syscall(SYS_openat, folder, path, flags, mode);
}
int open64(const char *path, int flags, unsigned mode)
{
	return openat64(AT_FDCWD, path, flags, mode);
}

/*
 * std asks where the first thread's stack is, to know an overflow when it sees one. musl feels its way down the stack, page by
 * page, with a call each; the stack can grow to its limit, which one call tells.
 */
int __real_pthread_getattr_np(pthread_t thread, pthread_attr_t *attributes);
int __wrap_pthread_getattr_np(pthread_t thread, pthread_attr_t *attributes)
{
	const rlim_t largest = 1 << 30;
	/* The kernel puts these bytes above everything that is called. */
	size_t end = (getauxval(AT_RANDOM) | 4095) + 1;
	struct rlimit limit;

	if (!pthread_equal(thread, pthread_self()) || syscall(SYS_gettid) != getpid() ||
	    getrlimit(RLIMIT_STACK, &limit) || limit.rlim_cur > largest)
		return __real_pthread_getattr_np(thread, attributes);
	pthread_attr_init(attributes);
	return pthread_attr_setstack(attributes, (void *)(end - limit.rlim_cur), limit.rlim_cur);
}
