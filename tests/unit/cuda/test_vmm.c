/*
 * Tests VMM chunks. The descriptor keeps the memory, a mapping is a view of it,
 * and a failure leaves neither.
 */
#include "cuda/context.h"
#include "cuda/vmm.h"
#include "proto/error.h"
#include "tests/lib/check.h"
#include "tests/lib/gpu.h"
#include "tests/lib/strike.h"
#include <criterion/parameterized.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define MIB  (UINT64_C(1) << 20)
#define SIZE (4 * MIB)

static bool says(const struct error *err, const char *part)
{
	return strstr(err->msg, part);
}

TestSuite(vmm, .init = gpu_open, .fini = gpu_close);

static const struct device *device(uint32_t i)
{
	const struct device *devices = NULL;
	struct error err = ERROR_NULL;
	uint32_t n = 0;

	cr_assert(zero(int, device_list(&devices, &n, &err)), "%s", err.msg);
	need_gpus(n, i + 1);
	return &devices[i];
}

static int create(const struct device *device, uint64_t size)
{
	struct error err = ERROR_NULL;
	int fd = -1;

	cr_assert(zero(int, vmm_create(device, size, &fd, &err)), "%s",
		  err.msg);
	return fd;
}

static struct vmm_mapping map(const struct device *device, int fd,
			      bool is_writable)
{
	struct vmm_mapping mapping = VMM_MAPPING_NULL;
	struct error err = ERROR_NULL;

	cr_assert(zero(int,
		       vmm_map(device, fd, SIZE, is_writable, &mapping, &err)),
		  "%s", err.msg);
	return mapping;
}

/* Write a word at the end of the chunk. Returns the first error of all
 * steps. */
static CUresult put(const struct vmm_mapping *mapping, uint64_t word)
{
	CUdeviceptr to = mapping->address + mapping->size - sizeof(word);
	CUresult result;

	if (context_enter(mapping->device, NULL) < 0)
		return CUDA_ERROR_INVALID_CONTEXT;
	result = cu.MemcpyHtoD(to, &word, sizeof(word));
	if (result == CUDA_SUCCESS)
		result = cu.CtxSynchronize();
	context_leave();
	return result;
}

static uint64_t get(const struct vmm_mapping *mapping)
{
	uint64_t word = 0;
	CUdeviceptr from = mapping->address + mapping->size - sizeof(word);

	cr_assert(zero(int, context_enter(mapping->device, NULL)));
	cr_assert(zero(int, cu.MemcpyDtoH(&word, from, sizeof(word))));
	context_leave();
	return word;
}

/* Enter the context first, because it opens descriptors and keeps them. */
static int count_fds(void)
{
	DIR *dir;
	int n = 0;

	cr_assert(zero(int, context_enter(device(0), NULL)));
	context_leave();
	dir = opendir("/proc/self/fd");

	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* The properties of the last allocation. Those of memory that was passed do not
 * contain all of them. */
static CUmemAllocationProp asked;
static CUresult (*create_memory)(CUmemGenericAllocationHandle *handle,
				 size_t size, const CUmemAllocationProp *prop,
				 unsigned long long flags);

static CUresult create_and_note(CUmemGenericAllocationHandle *handle,
				size_t size, const CUmemAllocationProp *prop,
				unsigned long long flags)
{
	asked = *prop;
	return create_memory(handle, size, prop, flags);
}

static void note_properties(void)
{
	(void)device(0); /* the driver is loaded */
	create_memory = cu.MemCreate;
	cu.MemCreate = create_and_note;
}

Test(vmm, sizes_round_up_to_the_granularity)
{
	cr_expect(zero(u64, vmm_round(device(0), 0)));
	cr_expect(eq(u64, vmm_round(device(0), 1), 2 * MIB));
	cr_expect(eq(u64, vmm_round(device(0), 2 * MIB), 2 * MIB));
	cr_expect(eq(u64, vmm_round(device(0), 2 * MIB + 1), 4 * MIB));
}

Test(vmm, creating_and_checking_a_chunk_creates_no_context)
{
	int fd;

	need_fake("its calls are counted");
	setenv("FAKECUDA_COUNT", "1", 1);
	fd = create(device(1), SIZE - 1);
	cr_expect(zero(int, vmm_check(device(1), fd, SIZE, NULL)));
	cr_expect(eq(int, fcntl(fd, F_GETFD), FD_CLOEXEC));
	cr_expect(eq(long, gpu_count(getpid(), "MemCreate"), 1));
	cr_expect(zero(long, gpu_count(getpid(), "contexts")));
	close(fd);
}

Test(vmm, two_mappings_of_one_fd_are_the_same_memory)
{
	int fd = create(device(0), SIZE);
	struct vmm_mapping writer = map(device(0), fd, true);
	struct vmm_mapping reader = map(device(0), fd, false);

	close(fd);
	cr_expect(ne(u64, writer.address, reader.address));
	cr_expect(writer.is_writable && !reader.is_writable);
	cr_expect(zero(int, put(&writer, 41)));
	cr_expect(eq(u64, get(&reader), 41));
	vmm_unmap(&writer);
	cr_expect(eq(u64, get(&reader), 41));
	vmm_unmap(&reader);
}

Test(vmm, unmapping_leaks_no_descriptor_and_may_be_repeated)
{
	int fd = create(device(0), SIZE), fds = count_fds();
	struct vmm_mapping mapping = map(device(0), fd, true);

	vmm_unmap(&mapping);
	cr_expect(zero(u64, mapping.address));
	vmm_unmap(&mapping);
	cr_expect(eq(int, count_fds(), fds));
	close(fd);
}

/*
 * Receive a chunk's descriptor, write to the chunk, and report the result; 0 is
 * success. Runs in a forked child, where Criterion's assertions do not work.
 */
static int run_other_process(int sock)
{
	char byte, control[CMSG_SPACE(sizeof(int))];
	struct iovec iov = {&byte, 1};
	struct msghdr message = {.msg_iov = &iov,
				 .msg_iovlen = 1,
				 .msg_control = control,
				 .msg_controllen = sizeof(control)};
	const struct device *devices;
	struct vmm_mapping mapping;
	uint32_t n;
	int fd;

	if (recvmsg(sock, &message, MSG_CMSG_CLOEXEC) != 1)
		return 1;
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	if (device_list(&devices, &n, NULL) < 0 ||
	    vmm_map(&devices[0], fd, SIZE, true, &mapping, NULL) < 0)
		return 2;
	return put(&mapping, 42) == CUDA_SUCCESS ? 0 : 3;
}

static void send_fd(int sock, int fd)
{
	char byte = 0, control[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec iov = {&byte, 1};
	struct msghdr message = {.msg_iov = &iov,
				 .msg_iovlen = 1,
				 .msg_control = control,
				 .msg_controllen = sizeof(control)};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	*header = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
				   .cmsg_type = SCM_RIGHTS,
				   .cmsg_len = CMSG_LEN(sizeof(fd))};
	memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	cr_assert(eq(int, (int)sendmsg(sock, &message, 0), 1));
}

Test(vmm, memory_written_by_a_process_outlives_it)
{
	struct vmm_mapping mapping;
	int socks[2], status, fd;
	pid_t pid;

	cr_assert(zero(int, socketpair(AF_UNIX, SOCK_STREAM, 0, socks)));
	pid = fork(); /* before the driver is loaded */
	if (pid == 0)
		_exit(run_other_process(socks[1]));
	fd = create(device(0), SIZE);
	send_fd(socks[0], fd);
	cr_assert(eq(int, waitpid(pid, &status, 0), pid));
	cr_expect(zero(int, status));
	mapping = map(device(0), fd, false);
	cr_expect(eq(u64, get(&mapping), 42));
	vmm_unmap(&mapping);
}

Test(vmm, the_descriptor_keeps_the_memory_until_it_is_closed)
{
	struct error err = ERROR_NULL;
	int fd, more = -1;

	need_fake("it must be another machine");
	setenv("FAKECUDA_MEM_MB", "6", 1);
	fd = create(device(0), SIZE);
	cr_expect(eq(int, vmm_create(device(0), SIZE, &more, &err), -ENOMEM));
	cr_expect(eq(int, more, -1));
	cr_expect(says(&err, "nvidia-smi"), "%s", err.msg);
	close(fd);
	close(create(device(0), SIZE));
}

Test(vmm, impossible_sizes_are_refused)
{
	struct error err = ERROR_NULL;
	int fd = -1;

	cr_expect(eq(int, vmm_create(device(0), 0, &fd, NULL), -EINVAL));
	cr_expect(
		eq(int, vmm_create(device(0), UINT64_MAX, &fd, &err), -ENOMEM));
	cr_expect(says(&err, "GPU-"), "%s", err.msg);
	cr_expect(eq(int, fd, -1));
}

Test(vmm, a_device_that_cannot_share_is_refused)
{
	struct error err = ERROR_NULL;
	int fd = -1;

	need_fake("it must be another machine");
	setenv("FAKECUDA_WITHOUT", "posix_fd", 1);
	cr_expect(eq(int, vmm_create(device(0), SIZE, &fd, &err), -EOPNOTSUPP));
	cr_expect(says(&err, "file descriptors"), "%s", err.msg);
	cr_expect(eq(int, vmm_check(device(0), 0, SIZE, NULL), -EOPNOTSUPP));
}

Test(vmm, rdma_is_requested_if_supported)
{
	note_properties();
	close(create(device(0), SIZE));
	cr_expect(eq(int, asked.requestedHandleTypes,
		     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	cr_expect(eq(int, asked.allocFlags.gpuDirectRDMACapable,
		     device(0)->has_rdma));
}

Test(vmm, a_device_without_rdma_gets_a_plain_chunk)
{
	need_fake("it must be another machine");
	setenv("FAKECUDA_WITHOUT", "rdma", 1);
	note_properties();
	close(create(device(0), SIZE));
	cr_expect(zero(int, asked.allocFlags.gpuDirectRDMACapable));
}

/* These files are not memory of device 0. */
enum { MEMFD, OTHER_DEVICE, PIPE, REGULAR, NULL_DEVICE, CLOSED, N_WRONG };

static int open_wrong(int kind)
{
	int pipes[2];

	switch (kind) {
	case MEMFD:
		return memfd_create("chunk", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	case OTHER_DEVICE:
		return create(device(1), SIZE);
	case PIPE:
		cr_assert(zero(int, pipe(pipes)));
		close(pipes[1]);
		return pipes[0];
	case REGULAR:
		return open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	case NULL_DEVICE:
		return open("/dev/null", O_RDWR | O_CLOEXEC);
	default:
		return -1;
	}
}

Test(vmm, another_file_is_not_accepted_as_memory)
{
	struct vmm_mapping mapping = VMM_MAPPING_NULL;

	for (int kind = 0; kind < N_WRONG; kind++) {
		struct error err = ERROR_NULL;
		int fd = open_wrong(kind), fds = count_fds();

		cr_expect(lt(int, vmm_check(device(0), fd, SIZE, &err), 0),
			  "kind %d", kind);
		cr_expect(says(&err, "passed"), "%s", err.msg);
		/* vmm_map() does not check the device, because a process that
		 * maps a chunk knows it. */
		if (kind != OTHER_DEVICE)
			cr_expect(lt(int,
				     vmm_map(device(0), fd, SIZE, true,
					     &mapping, NULL),
				     0));
		cr_expect(zero(u64, mapping.address));
		cr_expect(eq(int, count_fds(), fds));
		if (fd >= 0)
			close(fd);
	}
}

Test(vmm, a_file_that_could_block_is_not_shown_to_the_driver)
{
	int pipe_fd = open_wrong(PIPE), file_fd = open_wrong(REGULAR);

	setenv("FAKECUDA_COUNT", "1", 1);
	cr_expect(eq(int, vmm_check(device(0), pipe_fd, SIZE, NULL), -EINVAL));
	cr_expect(eq(int, vmm_check(device(0), file_fd, SIZE, NULL), -EINVAL));
	cr_expect(le(long, gpu_count(getpid(), "MemImportFromShareableHandle"),
		     0));
	close(pipe_fd);
	close(file_fd);
}

Test(vmm, another_size_is_refused)
{
	static const uint64_t sizes[] = {SIZE / 2, 2 * SIZE};
	struct vmm_mapping mapping = VMM_MAPPING_NULL;
	int fd = create(device(0), SIZE), fds = count_fds();

	cr_expect(eq(int, vmm_check(device(0), fd, 0, NULL), -EINVAL));
	cr_expect(eq(int, vmm_check(device(0), fd, SIZE - 1, NULL), -EINVAL));
	cr_expect(eq(int, vmm_check(device(0), fd, UINT64_MAX, NULL), -EINVAL));
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		struct error err = ERROR_NULL;

		cr_expect(eq(
			int,
			vmm_map(device(0), fd, sizes[i], true, &mapping, &err),
			-EINVAL));
		cr_expect(says(&err, "a different size"), "%s", err.msg);
		cr_expect(zero(u64, mapping.address));
	}
	cr_expect(eq(int, count_fds(), fds));
	close(fd);
}

Test(vmm, copies_and_fills_to_a_read_only_mapping_fail)
{
	int fd = create(device(0), SIZE);
	struct vmm_mapping own = map(device(0), fd, true);
	struct vmm_mapping mapping = map(device(0), fd, false);
	const CUdeviceptr to = mapping.address;
	uint64_t word = 1;
	CUstream stream;

	cr_assert(zero(int, put(&own, 7)));
	cr_expect(eq(int, put(&mapping, 1), CUDA_ERROR_INVALID_VALUE));
	cr_assert(zero(int, context_enter(device(0), NULL)));
	cr_assert(zero(int, cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING)));
	cr_expect(eq(int, cu.MemcpyHtoDAsync(to, &word, sizeof(word), stream),
		     CUDA_ERROR_INVALID_VALUE));
	cr_expect(eq(int, cu.MemsetD8Async(to, 1, SIZE, stream),
		     CUDA_ERROR_INVALID_VALUE));
	cr_expect(zero(int, cu.StreamSynchronize(stream)));
	context_leave();
	cr_expect(eq(u64, get(&mapping), 7), "the device can still be used");
}

Test(vmm, a_kernel_that_writes_a_read_only_mapping_is_a_sticky_error)
{
	struct vmm_mapping mapping =
		map(device(0), create(device(0), SIZE), false);
	struct error err = ERROR_NULL;
	CUresult result;
	CUstream stream;

	need_kernels();
	cr_assert(zero(int, context_enter(device(0), NULL)));
	cr_assert(zero(int, cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING)));
	cr_assert(zero(int, strike(device(0), mapping.address, stream)));
	result = cu.StreamSynchronize(stream);
	context_leave();
	cr_assert(driver_is_sticky(result), "result %d", (int)result);
	cr_expect(eq(int, driver_error(&err, result, "write"), -EIO));
	cr_expect(says(&err, "start it again"), "%s", err.msg);
}

/* Make and map a chunk. The device has memory for only one. */
static int make_and_map(void)
{
	struct vmm_mapping mapping = VMM_MAPPING_NULL;
	int fd = -1;
	int r = vmm_create(device(0), SIZE, &fd, NULL);

	if (r < 0)
		return r;
	r = vmm_map(device(0), fd, SIZE, true, &mapping, NULL);
	vmm_unmap(&mapping);
	close(fd);
	return r;
}

/* Returns the number of address ranges that were reserved and not freed. */
static long count_reservations(const char *fault)
{
	const char name[] = "MemAddressReserve";
	long n_failed = strncmp(fault, name, strlen(name)) == 0;

	return gpu_count(getpid(), name) - n_failed -
	       gpu_count(getpid(), "MemAddressFree");
}

/* Each process has one fault: FAKECUDA_FAIL. */
struct fault {
	char fail[56];
};

ParameterizedTestParameters(vmm, a_failure_of_any_call_leaves_no_memory)
{
	static struct fault faults[] = {
		{"MemCreate:1:2"},
		{"MemExportToShareableHandle:1:2"},
		{"DevicePrimaryCtxRetain:1:2"},
		{"CtxPushCurrent:1:2"},
		{"MemImportFromShareableHandle:1:2"},
		{"MemAddressReserve:1:2"},
		{"MemMap:1:2"},
		{"MemSetAccess:1:2"},
	};

	return cr_make_param_array(struct fault, faults,
				   sizeof(faults) / sizeof(*faults));
}

ParameterizedTest(struct fault *fault, vmm,
		  a_failure_of_any_call_leaves_no_memory)
{
	need_fake("calls must fail");
	setenv("FAKECUDA_COUNT", "1", 1);
	setenv("FAKECUDA_MEM_MB", "4", 1);
	setenv("FAKECUDA_FAIL", fault->fail, 1);
	cr_expect(eq(int, make_and_map(), -ENOMEM), "%s", fault->fail);
	cr_expect(zero(int, make_and_map()), "%s", fault->fail);
	cr_expect(eq(long, count_reservations(fault->fail), 0), "%s",
		  fault->fail);
}

Test(vmm, a_forked_child_cannot_map_and_does_not_disturb_its_parent)
{
	const struct device *gpu = device(0);
	int fd = create(gpu, SIZE), status;
	struct vmm_mapping mapping = map(gpu, fd, true);
	pid_t pid = fork();

	if (pid == 0) {
		struct vmm_mapping more;
		int r = vmm_map(gpu, fd, SIZE, false, &more, NULL);

		vmm_unmap(&mapping);
		_exit(-r);
	}
	cr_assert(eq(int, waitpid(pid, &status, 0), pid));
	cr_expect(eq(int, WEXITSTATUS(status), ECHILD));
	cr_expect(zero(int, put(&mapping, 3)));
	cr_expect(eq(u64, get(&mapping), 3));
	vmm_unmap(&mapping);
	close(fd);
}

/* --- memory of others ---------------------------------------------------- */

static CUresult no_memory(CUmemGenericAllocationHandle *handle, void *at)
{
	(void)handle, (void)at;
	return CUDA_ERROR_INVALID_VALUE;
}

/* Make memory as a caller's own allocator does. */
static struct vmm_mapping make_own(const struct device *device)
{
	const CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE,
					device->ordinal};
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes =
			CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = location,
	};
	const CUmemAccessDesc access = {location,
					CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	struct vmm_mapping own = {.device = device, .size = SIZE};

	cr_assert(zero(int, context_enter(device, NULL)));
	cr_assert(zero(int, cu.MemCreate(&own.handle, SIZE, &prop, 0)));
	cr_assert(zero(int, cu.MemAddressReserve(&own.address, SIZE, 0, 0, 0)));
	cr_assert(zero(int, cu.MemMap(own.address, SIZE, 0, own.handle, 0)));
	cr_assert(zero(int, cu.MemSetAccess(own.address, SIZE, &access, 1)));
	context_leave();
	return own;
}

Test(vmm, memory_created_by_the_caller_can_be_exported)
{
	struct vmm_mapping own = make_own(device(0)), mapping;
	struct vmm_export *export = NULL;
	struct error err = ERROR_NULL;

	cr_assert(zero(int, vmm_export(own.address + 4096, &export, &err)),
		  "%s", err.msg);
	cr_expect(eq(int, fcntl(export->fd, F_GETFD), FD_CLOEXEC));
	cr_expect(zero(int, vmm_check(device(0), export->fd, SIZE, NULL)));
	mapping = map(device(0), export->fd, false);
	cr_assert(zero(int, put(&own, 42)));
	cr_expect(eq(u64, get(&mapping), 42));
	vmm_unmap(&mapping);
	vmm_unexport(export);
	cu.MemRetainAllocationHandle = no_memory;
	cr_expect(eq(int, vmm_export(own.address, &export, &err), -EOPNOTSUPP));
	cr_expect(says(&err, "cudaMallocAsync"), "%s", err.msg);
	vmm_unmap(&own);
}

static struct vmm_export *export(const struct vmm_mapping *own)
{
	struct vmm_export *export = NULL;
	struct error err = ERROR_NULL;

	cr_assert(zero(int, vmm_export(own->address, &export, &err)), "%s",
		  err.msg);
	return export;
}

Test(vmm, memory_is_exported_once_while_its_mapping_is_the_same)
{
	struct vmm_mapping own = make_own(device(0)),
			   more = make_own(device(0));
	struct vmm_export *one = export(&own), *same = export(&own), *other;
	int fds = count_fds();

	cr_expect(eq(int, same->fd, one->fd));
	vmm_unexport(same);
	cr_expect(eq(int, count_fds(), fds), "it has another user");

	/* Memory that is mapped there next is different. */
	cr_assert(zero(int, cu.MemUnmap(own.address, SIZE)));
	cr_assert(zero(int, cu.MemRelease(own.handle)));
	cr_assert(zero(int, cu.MemUnmap(more.address, SIZE)));
	cr_assert(zero(int, cu.MemAddressFree(more.address, SIZE)));
	more.address = own.address;
	cr_assert(zero(int, cu.MemMap(more.address, SIZE, 0, more.handle, 0)));
	fds = count_fds();
	other = export(&more);
	cr_expect(ne(int, other->fd, one->fd));
	vmm_unexport(other);
	cr_expect(eq(int, count_fds(), fds));
	vmm_unexport(one);
	vmm_unmap(&more);
}

Test(vmm, imported_memory_cannot_be_exported)
{
	int fd = create(device(0), SIZE);
	struct vmm_mapping mapping = map(device(0), fd, true);
	struct vmm_export *export = NULL;
	struct error err = ERROR_NULL;

	close(fd);
	cr_expect(eq(int, vmm_export(mapping.address, &export, &err),
		     -EOPNOTSUPP));
	cr_expect(says(&err, "or imported"), "%s", err.msg);
	vmm_unmap(&mapping);
}
