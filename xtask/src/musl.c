/*
 * What Rust's standard library for GNU systems and gcc's unwinder ask of glibc and musl does not have.
 *
 * The two C libraries share the binary interface of everything else that is used: types, constants and calls follow the
 * psABI and the kernel's headers in both.
 */

#include <elf.h>

/* glibc's dlfcn.h, struct dl_find_object, on architectures without a base for the table. */
struct object {
	unsigned long flags;
	char *start, *end;
	void *link_map;
	char *unwind_table;
	unsigned long reserved[7];
};

/* Where the linker put the file's header. */
extern Elf64_Ehdr __ehdr_start __attribute__((visibility("hidden")));

/* libgcc's unwinder, glibc 2.35 and later: the object that an address is of. Here there is one. */
int _dl_find_object(char *address, struct object *found)
{
	char *file = (char *)&__ehdr_start;
	Elf64_Phdr *segment = (Elf64_Phdr *)(file + __ehdr_start.e_phoff);
	Elf64_Phdr *last = segment + __ehdr_start.e_phnum;
	char *base = 0;

	*found = (struct object){0};
	for (; segment < last; segment++) {
		if (segment->p_type == PT_LOAD && segment->p_offset == 0)
			base = file - segment->p_vaddr;
		if (segment->p_type == PT_LOAD)
			found->end = base + segment->p_vaddr + segment->p_memsz;
		if (segment->p_type == PT_GNU_EH_FRAME)
			found->unwind_table = base + segment->p_vaddr;
	}
	found->start = file;
	return found->unwind_table && found->start <= address && address < found->end ? 0 : -1;
}

/* The unwinder takes a lock if there are threads, by names that it does not insist on: they are to be there. */
extern char pthread_key_create, pthread_getspecific, pthread_setspecific, pthread_once;
extern char pthread_mutex_lock, pthread_mutex_unlock;
char *const unwinder_locks_with[] = {
	&pthread_key_create, &pthread_getspecific, &pthread_setspecific, &pthread_once,
	&pthread_mutex_lock, &pthread_mutex_unlock,
};

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
