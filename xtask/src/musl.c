/*
 * What Rust's standard library for GNU systems and gcc's unwinder ask of glibc and musl does not have.
 *
 * The two C libraries share the binary interface of everything else that is used: types, constants and calls follow the
 * psABI and the kernel's headers in both. Compiled without headers, so that each name is just what it is here.
 */

/* libgcc's unwinder, glibc 2.35 and later: the unwind table of an address. None: a panic here ends the process. */
int _dl_find_object(void *address, void *result)
{
	(void)address;
	(void)result;
	return -1;
}

/* std tells glibc before 2.26 to read resolv.conf again; musl reads it at every question. */
const char *gnu_get_libc_version(void) { return "2.26"; }
int __res_init(void) { return 0; }

/*
 * Names for large files: in musl every file may be large, and its archive has these second names up to 1.2.3 only. A word
 * holds every argument and result here, and what a callee does not take is ignored (psABI: all are in registers).
 */
typedef long word;
#define SECOND_NAME(name)                                            \
	word name(word, word, word, word, word, word);               \
	word name##64(word a, word b, word c, word d, word e, word f) \
	{                                                            \
		return name(a, b, c, d, e, f);                       \
	}
SECOND_NAME(creat)
SECOND_NAME(fallocate)
SECOND_NAME(fstat)
SECOND_NAME(fstatat)
SECOND_NAME(fstatfs)
SECOND_NAME(fstatvfs)
SECOND_NAME(ftruncate)
SECOND_NAME(getrlimit)
SECOND_NAME(lseek)
SECOND_NAME(lstat)
SECOND_NAME(mmap)
SECOND_NAME(open)
SECOND_NAME(openat)
SECOND_NAME(posix_fadvise)
SECOND_NAME(pread)
SECOND_NAME(preadv)
SECOND_NAME(prlimit)
SECOND_NAME(pwrite)
SECOND_NAME(pwritev)
SECOND_NAME(readdir)
SECOND_NAME(sendfile)
SECOND_NAME(setrlimit)
SECOND_NAME(stat)
SECOND_NAME(statfs)
SECOND_NAME(statvfs)
SECOND_NAME(truncate)
