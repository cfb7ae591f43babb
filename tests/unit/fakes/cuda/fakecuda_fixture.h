/*
 * Helpers for the tests of the fake driver. The tests call the driver directly,
 * because it is linked with them and not loaded. Other processes
 * (tests/lib/actor.h) are started before cuInit().
 */
#pragma once
#include "cuda/driver_api.h"
#include "tests/lib/actor.h"
#include "tests/lib/check.h"
#include "tests/lib/gpu.h"
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define MIB   (UINT64_C(1) << 20)
#define CHUNK (2 * MIB)

/* Checks a condition, also in actors and threads, which cannot use
 * cr_assert(). */
#define MUST(condition)                                                        \
	do                                                                     \
		if (!(condition)) {                                            \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__,     \
				#condition);                                   \
			abort();                                               \
		}                                                              \
	while (0)
#define OK(call) MUST((call) == CUDA_SUCCESS)

/* Runs the function in a child that has not called the driver yet. Returns
 * whether it ends the process with SIGABRT, and with a sentence that contains
 * `part`. */
static inline bool ends_with(void (*function)(void), const char *part)
{
	char text[512] = "";
	size_t n = 0;
	ssize_t more = 1;
	int pipes[2], status;
	pid_t pid;

	MUST(pipe(pipes) == 0);
	pid = fork();
	if (pid == 0) {
		MUST(dup2(pipes[1], STDERR_FILENO) >= 0);
		function();
		_exit(0);
	}
	close(pipes[1]);
	while (more > 0 && n < sizeof(text) - 1) {
		more = read(pipes[0], text + n, sizeof(text) - 1 - n);
		n += more > 0 ? (size_t)more : 0;
	}
	close(pipes[0]);
	MUST(waitpid(pid, &status, 0) == pid);
	return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT &&
	       strstr(text, part);
}

#define EXPECT_RESULT(call, result) cr_expect(eq(int, (int)(call), (result)))

static inline void leave_at_once(void)
{
	_exit(7);
}

/* Let a forked child end by exit(), with status 7, but without the leak
 * checker, which would report the threads of its parent. */
static inline void expect_exit(void)
{
	MUST(atexit(leave_at_once) == 0); /* runs after the fake's */
}

static inline CUcontext use_device(CUdevice device)
{
	CUcontext context;

	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, device));
	OK(cuCtxPushCurrent(context));
	return context;
}

static inline CUstream new_stream(void)
{
	CUstream stream;

	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	return stream;
}

static inline CUmemAllocationProp vmm_prop(CUdevice device)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes =
			CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, device},
	};
}

static inline CUresult vmm_try(uint64_t size, CUmemGenericAllocationHandle *ret)
{
	CUmemAllocationProp prop = vmm_prop(0);

	return cuMemCreate(ret, size, &prop, 0);
}

static inline CUmemGenericAllocationHandle vmm_new(uint64_t size)
{
	CUmemGenericAllocationHandle handle;

	OK(vmm_try(size, &handle));
	return handle;
}

static inline int vmm_fd(CUmemGenericAllocationHandle handle)
{
	int fd = -1;

	OK(cuMemExportToShareableHandle(
		&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	return fd;
}

static inline CUresult vmm_import(int fd, CUmemGenericAllocationHandle *ret)
{
	return cuMemImportFromShareableHandle(
		ret, (void *)(intptr_t)fd,
		CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

static inline CUresult vmm_access(CUdeviceptr at, uint64_t size,
				  CUmemAccess_flags flags)
{
	CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, flags};

	return cuMemSetAccess(at, size, &access, 1);
}

static inline CUdeviceptr vmm_map_at(CUmemGenericAllocationHandle handle,
				     uint64_t size, CUmemAccess_flags flags)
{
	CUdeviceptr at;

	OK(cuMemAddressReserve(&at, size, 0, 0, 0));
	OK(cuMemMap(at, size, 0, handle, 0));
	if (flags)
		OK(vmm_access(at, size, flags));
	return at;
}

static inline void vmm_unmap_at(CUdeviceptr at, uint64_t size)
{
	OK(cuMemUnmap(at, size));
	OK(cuMemAddressFree(at, size));
}

/* Read or write 64-bit words of device memory, by copies that wait. */
static inline uint64_t peek(CUdeviceptr at)
{
	uint64_t value = 0;

	OK(cuMemcpyDtoH(&value, at, sizeof(value)));
	return value;
}

static inline void poke(CUdeviceptr at, uint64_t value)
{
	OK(cuMemcpyHtoD(at, &value, sizeof(value)));
	OK(cuStreamSynchronize(NULL));
}

/* A page of words that streams and CPU share. */
struct words {
	_Atomic uint64_t *host;
	CUdeviceptr device;
};

static inline struct words new_words(void)
{
	struct words words;
	void *at;

	OK(cuMemHostAlloc(&at, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
	OK(cuMemHostGetDevicePointer(&words.device, at, 0));
	words.host = at;
	return words;
}

/*
 * Queue a copy of word 2 to word 3 on the stream, to find out whether the
 * stream gets here too early. The test calls arrive(), which sets word 2,
 * before it releases the stream. So word 3 becomes 1 if the order is right.
 */
static inline void look(CUstream stream, const struct words *words)
{
	OK(cuMemcpyDtoDAsync(words->device + 24, words->device + 16, 8,
			     stream));
}

static inline void arrive(const struct words *words)
{
	/* This gives a wrong stream time to be too early. The test is valid
	 * without it. */
	for (int i = 0; i < 2000; i++)
		sched_yield();
	words->host[2] = 1;
}

static inline void *shared_memory(size_t size)
{
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	MUST(at != MAP_FAILED);
	return at;
}

/* Send a file descriptor between processes, through a socket made before. */
static inline void send_fd(int sock, int fd)
{
	char control[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec part = {"f", 1};
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control),
	};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	MUST(sendmsg(sock, &message, 0) == 1);
}

static inline int receive_fd(int sock)
{
	char control[CMSG_SPACE(sizeof(int))], byte;
	struct iovec part = {&byte, 1};
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control),
	};
	int fd;

	MUST(recvmsg(sock, &message, MSG_CMSG_CLOEXEC) == 1);
	MUST(message.msg_controllen > 0);
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	return fd;
}
