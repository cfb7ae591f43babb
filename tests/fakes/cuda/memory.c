/* Physical memory: descriptors of allocations. */
#include "tests/fakes/cuda/memory.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Consumes `fd`, also on failure. */
static CUresult open_memory(int fd, struct memory **ret)
{
	struct memory *memory = calloc(1, sizeof(*memory));
	struct stat st;
	void *at;

	if (!memory || fstat(fd, &st) < 0) {
		free(memory);
		close(fd);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	at = mmap(NULL, LEDGER_HEAD, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED) {
		free(memory);
		close(fd);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	/* a forked child must not inherit it, like all device memory */
	madvise(at, LEDGER_HEAD, MADV_DONTFORK);
	*memory = (struct memory){
		.fd = fd,
		.head = at,
		.size = ((struct ledger_head *)at)->size,
		.inode = st.st_ino,
		.n_refs = 1,
	};
	*ret = memory;
	return CUDA_SUCCESS;
}

CUresult memory_create(struct ledger_head *head, struct memory **ret)
{
	int fd;

	head->maker = getpid();
	fd = ledger_create(head);
	if (fd == -ENOMEM)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	return open_memory(fd, ret);
}

CUresult memory_import(int fd, struct memory **ret)
{
	CUresult r;

	if (!ledger_is_memory(fd)) {
		close(fd);
		return CUDA_ERROR_UNKNOWN;
	}
	/* if it was opened by its name, it has no lock yet */
	ledger_lock_file(fd);
	r = open_memory(fd, ret);
	if (r == CUDA_SUCCESS)
		(*ret)->is_imported = true;
	return r;
}

struct memory *memory_ref(struct memory *memory)
{
	memory->n_refs++;
	return memory;
}

void memory_unref(struct memory *memory)
{
	uint64_t serial;

	if (!memory || --memory->n_refs > 0)
		return;
	serial = memory->head->serial;
	munmap(memory->head, LEDGER_HEAD);
	close(memory->fd);
	ledger_settle(serial, memory->inode);
	free(memory);
}
