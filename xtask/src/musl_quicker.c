/*
 * What Rust's standard library calls at every start, file and copy, and what takes musl longer than it needs to. The linker
 * gives the calls of a name to __wrap_ and that name (ld, --wrap).
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

/*
 * Copies of a few bytes are what a Rust program makes most. musl's take one instruction for any length (rep movsq), which is
 * slow to start; these take it for what is long. Both ends are loaded before anything is stored, so that what is short may
 * overlap.
 */
typedef unsigned short __attribute__((may_alias, aligned(1))) two;
typedef unsigned __attribute__((may_alias, aligned(1))) four;
typedef unsigned long __attribute__((may_alias, aligned(1))) eight;
typedef long __attribute__((vector_size(16), may_alias, aligned(1))) sixteen;
#define ENDS(type)                                             \
	do {                                                   \
		type first = *(const type *)from;              \
		type last = *(const type *)(from + n - sizeof(type)); \
		*(type *)to = first;                           \
		*(type *)(to + n - sizeof(type)) = last;       \
	} while (0)

static int copy_short(char *to, const char *from, size_t n)
{
	if (n > 32)
		return 0;
	if (n >= 16)
		ENDS(sixteen);
	else if (n >= 8)
		ENDS(eight);
	else if (n >= 4)
		ENDS(four);
	else if (n >= 2)
		ENDS(two);
	else if (n)
		*to = *from;
	return 1;
}

/* Not restrict: memmove uses it also where the two overlap, and the destination begins first. */
void *__wrap_memcpy(void *into, const void *of, size_t n)
{
	char *to = into;
	const char *from = of;
	sixteen last;

	if (copy_short(to, from, n))
		return into;
#ifdef __x86_64__
	if (n > 1024) {
		__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
		return into;
	}
#endif
	last = *(const sixteen *)(from + n - 16);
	for (; n > 16; n -= 16, to += 16, from += 16)
		*(sixteen *)to = *(const sixteen *)from;
	*(sixteen *)(to + n - 16) = last;
	return into;
}

void *__wrap_memmove(void *into, const void *of, size_t n)
{
	char *to = into;
	const char *from = of;

	if (copy_short(to, from, n))
		return into;
	if ((size_t)(to - from) >= n)
		return __wrap_memcpy(into, of, n);
	/* The destination begins inside the source: from the end. */
	while (n >= 8) {
		n -= 8;
		*(eight *)(to + n) = *(const eight *)(from + n);
	}
	while (n--)
		to[n] = from[n];
	return into;
}

/* Maps that are sorted by names compare most, and names of nodes and pods begin alike; musl compares byte by byte. */
int __wrap_memcmp(const void *of, const void *with, size_t n)
{
	const unsigned char *one = of, *other = with;

	for (; n >= 8; n -= 8, one += 8, other += 8) {
		unsigned long a = *(const eight *)one, b = *(const eight *)other;

		if (a != b) {
			/* The first byte that differs is the lowest here. */
			int bits = __builtin_ctzl(a ^ b) & ~7;

			return (int)((a >> bits) & 255) - (int)((b >> bits) & 255);
		}
	}
	for (; n; n--, one++, other++)
		if (*one != *other)
			return *one - *other;
	return 0;
}
