/* Tests the fake driver: devices, contexts, memory, and refusals. */
#include "tests/fakes/cuda/fake.h"
#include "tests/unit/fakes/cuda/fakecuda_fixture.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

TestSuite(fakecuda, .init = gpu_open, .fini = gpu_close, .timeout = 300);

/* --- start --------------------------------------------------------------- */

Test(fakecuda, before_init_only_the_version_can_be_queried)
{
	CUmemGenericAllocationHandle handle;
	int n;

	EXPECT_RESULT(cuDeviceGetCount(&n), CUDA_ERROR_NOT_INITIALIZED);
	EXPECT_RESULT(vmm_try(CHUNK, &handle), CUDA_ERROR_NOT_INITIALIZED);
	EXPECT_RESULT(cuDriverGetVersion(&n), CUDA_SUCCESS);
	cr_expect(eq(int, n, 13000));
	EXPECT_RESULT(cuInit(1), CUDA_ERROR_INVALID_VALUE);
	EXPECT_RESULT(cuInit(0), CUDA_SUCCESS);
	EXPECT_RESULT(cuDeviceGetCount(&n), CUDA_SUCCESS);
	cr_expect(eq(int, n, 2));
}

Test(fakecuda, a_machine_may_have_no_device)
{
	setenv("FAKECUDA_DEVICES", "0", 1);
	EXPECT_RESULT(cuInit(0), CUDA_ERROR_NO_DEVICE);
}

static void read_uuid(CUdevice device, char ret[48])
{
	CUuuid uuid;

	OK(cuDeviceGetUuid(&uuid, device));
	strcpy(ret, "GPU");
	for (int i = 0; i < 16; i++)
		sprintf(ret + strlen(ret), "%s%02x",
			i == 0 || (i >= 4 && i <= 10 && i % 2 == 0) ? "-" : "",
			(unsigned char)uuid.bytes[i]);
}

static char (*seen_uuids)[48];

static int read_uuids(void)
{
	OK(cuInit(0));
	for (int i = 0; i < 3; i++)
		read_uuid(i, seen_uuids[i]);
	return 0;
}

Test(fakecuda, devices_are_chosen_by_ordinal_and_uuid)
{
	struct actor actor;
	char list[128], uuid[48];
	int n, number = -1;

	seen_uuids = shared_memory(4096);
	setenv("FAKECUDA_DEVICES", "3", 1);
	actor_start(&actor, NULL);
	cr_assert(zero(int, actor_run(&actor, read_uuids)));
	actor_kill(&actor);
	cr_expect(ne(str, seen_uuids[0], seen_uuids[1]));

	sprintf(list, "%s,0,7,1", seen_uuids[2]);
	setenv("CUDA_VISIBLE_DEVICES", list, 1);
	use_device(0);
	OK(cuDeviceGetCount(&n));
	cr_expect(eq(int, n, 2), "the list ends with the first wrong one");
	read_uuid(0, uuid);
	cr_expect(eq(str, uuid, seen_uuids[2]));
	OK(fake_current_device(&number));
	cr_expect(eq(int, number, 2));
}

Test(fakecuda, choosing_a_device_twice_leaves_no_device)
{
	setenv("CUDA_VISIBLE_DEVICES", "1,1", 1);
	EXPECT_RESULT(cuInit(0), CUDA_ERROR_NO_DEVICE);
}

Test(fakecuda, features_that_devices_lack_are_neither_reported_nor_provided)
{
	CUmemAllocationProp prop = vmm_prop(0);
	CUmemGenericAllocationHandle handle;
	CUevent event;
	int value = -1;

	setenv("FAKECUDA_WITHOUT", "posix_fd,rdma,ipc_events", 1);
	use_device(0);
	OK(cuDeviceGetAttribute(
		&value,
		CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
		0));
	cr_expect(eq(int, value, 0));
	EXPECT_RESULT(vmm_try(CHUNK, &handle), CUDA_ERROR_NOT_SUPPORTED);
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
	prop.allocFlags.gpuDirectRDMACapable = 1;
	EXPECT_RESULT(cuMemCreate(&handle, CHUNK, &prop, 0),
		      CUDA_ERROR_NOT_SUPPORTED);
	prop.allocFlags.gpuDirectRDMACapable = 0;
	EXPECT_RESULT(cuMemCreate(&handle, CHUNK, &prop, 0), CUDA_SUCCESS);
	EXPECT_RESULT(cuEventCreate(&event, CU_EVENT_INTERPROCESS |
						    CU_EVENT_DISABLE_TIMING),
		      CUDA_ERROR_NOT_SUPPORTED);
}

Test(fakecuda, calls_of_vmm_fail_on_a_device_without_it)
{
	CUmemAllocationProp prop = vmm_prop(0);
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;
	size_t size;
	int value = -1;

	setenv("FAKECUDA_WITHOUT", "vmm", 1);
	OK(cuInit(0));
	OK(cuDeviceGetAttribute(
		&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
		0));
	cr_expect(eq(int, value, 0));
	EXPECT_RESULT(cuMemGetAllocationGranularity(
			      &size, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
		      CUDA_ERROR_NOT_SUPPORTED);
	EXPECT_RESULT(vmm_try(CHUNK, &handle), CUDA_ERROR_NOT_SUPPORTED);
	EXPECT_RESULT(cuMemAddressReserve(&at, CHUNK, 0, 0, 0),
		      CUDA_ERROR_NOT_SUPPORTED);
	EXPECT_RESULT(vmm_import(0, &handle), CUDA_ERROR_NOT_SUPPORTED);
}

Test(fakecuda, devices_describe_themselves)
{
	char name[64];
	size_t size;
	int value;

	setenv("FAKECUDA_MEM_MB", "100", 1);
	OK(cuInit(0));
	OK(cuDeviceGetName(name, sizeof(name), 1));
	cr_expect(eq(str, name, "Fake 1"));
	OK(cuDeviceTotalMem(&size, 1));
	cr_expect(eq(sz, size, 100 * MIB));
	EXPECT_RESULT(cuDeviceGetName(name, sizeof(name), 2),
		      CUDA_ERROR_INVALID_DEVICE);
	EXPECT_RESULT(cuDeviceGetAttribute(&value, 0, 0),
		      CUDA_ERROR_INVALID_VALUE);
}

Test(fakecuda, results_have_names)
{
	const char *text;

	OK(cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &text));
	cr_expect(eq(str, (char *)text, "CUDA_ERROR_ILLEGAL_ADDRESS"));
	OK(cuGetErrorString(CUDA_ERROR_ILLEGAL_ADDRESS, &text));
	cr_expect(ne(ptr, (void *)text, NULL));
	EXPECT_RESULT(cuGetErrorName(12345, &text), CUDA_ERROR_INVALID_VALUE);
	cr_expect(eq(ptr, (void *)text, NULL));
}

Test(fakecuda, symbols_are_found_by_name_without_version)
{
	CUresult (*get)(const char *, void **, int, uint64_t, int *);
	extern CUresult cuGetProcAddress_v2(const char *, void **, int,
					    uint64_t, int *);
	void *found;
	int status;

	get = cuGetProcAddress_v2;
	EXPECT_RESULT(get("cuMemFree", &found, 13000, 0, &status),
		      CUDA_SUCCESS);
	cr_expect(found == (void *)(uintptr_t)cuMemFree);
	EXPECT_RESULT(get("cuNoSuchThing", &found, 13000, 0, &status),
		      CUDA_ERROR_NOT_FOUND);
	cr_expect(eq(int, status, 1));
}

/* --- contexts ------------------------------------------------------------ */

Test(fakecuda, without_a_context_only_vmm_works)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;
	CUstream stream;
	CUevent event;
	void *pages;

	OK(cuInit(0));
	EXPECT_RESULT(cuMemAlloc(&at, 64), CUDA_ERROR_INVALID_CONTEXT);
	EXPECT_RESULT(cuStreamCreate(&stream, 0), CUDA_ERROR_INVALID_CONTEXT);
	EXPECT_RESULT(cuEventCreate(&event, 0), CUDA_ERROR_INVALID_CONTEXT);
	EXPECT_RESULT(cuMemHostAlloc(&pages, 64, 0),
		      CUDA_ERROR_INVALID_CONTEXT);
	EXPECT_RESULT(cuStreamSynchronize(NULL), CUDA_ERROR_INVALID_CONTEXT);
	handle = vmm_new(CHUNK);
	at = vmm_map_at(handle, CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READ);
	vmm_unmap_at(at, CHUNK);
	OK(cuMemRelease(handle));
}

static void *get_device(void *data)
{
	CUdevice device;

	*(CUresult *)data = cuCtxGetDevice(&device);
	return NULL;
}

Test(fakecuda, each_thread_has_its_own_current_context)
{
	CUcontext first, second, found;
	pthread_t thread;
	CUresult r;

	first = use_device(0);
	OK(cuDevicePrimaryCtxRetain(&second, 1));
	OK(cuCtxPushCurrent(second));
	OK(cuCtxPopCurrent(&found));
	cr_expect(found == second);
	OK(cuCtxGetCurrent(&found));
	cr_expect(found == first);
	MUST(pthread_create(&thread, NULL, get_device, &r) == 0);
	pthread_join(thread, NULL);
	EXPECT_RESULT(r, CUDA_ERROR_INVALID_CONTEXT);
	OK(cuCtxPopCurrent(NULL));
	EXPECT_RESULT(cuCtxPopCurrent(NULL), CUDA_ERROR_INVALID_CONTEXT);
}

Test(fakecuda, objects_of_a_destroyed_context_are_refused)
{
	CUcontext old = use_device(0), new;
	CUstream stream = new_stream();
	CUdeviceptr at;
	CUevent event;

	OK(cuMemAlloc(&at, 64));
	OK(cuEventCreate(&event, 0));
	OK(cuDevicePrimaryCtxRelease(0));
	EXPECT_RESULT(cuDevicePrimaryCtxRelease(0), CUDA_ERROR_INVALID_CONTEXT);
	EXPECT_RESULT(cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	EXPECT_RESULT(cuCtxPushCurrent(old), CUDA_ERROR_INVALID_CONTEXT);
	new = use_device(0);
	cr_expect(new != old);
	EXPECT_RESULT(cuStreamQuery(stream), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	EXPECT_RESULT(cuEventQuery(event), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	EXPECT_RESULT(cuMemFree(at), CUDA_ERROR_INVALID_VALUE);
}

Test(fakecuda, destroyed_and_invalid_handles_are_refused)
{
	CUmemGenericAllocationHandle handle;
	CUevent event;

	use_device(0);
	handle = vmm_new(CHUNK);
	OK(cuEventCreate(&event, 0));
	OK(cuMemRelease(handle));
	OK(cuEventDestroy(event));
	EXPECT_RESULT(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
	EXPECT_RESULT(cuEventDestroy(event), CUDA_ERROR_INVALID_HANDLE);
	EXPECT_RESULT(cuEventRecord((CUevent)new_stream(), NULL),
		      CUDA_ERROR_INVALID_HANDLE);
	EXPECT_RESULT(cuStreamDestroy(CU_STREAM_LEGACY),
		      CUDA_ERROR_INVALID_HANDLE);
}

static CUstream make_gone(void)
{
	CUstream stream;

	use_device(0);
	stream = new_stream();
	OK(cuStreamDestroy(stream));
	return stream;
}

static void ask_what_is_gone(void)
{
	(void)cuStreamQuery(make_gone());
}

static void record_in_what_is_gone(void)
{
	CUstream gone = make_gone();
	CUevent event;

	OK(cuEventCreate(&event, 0));
	(void)cuEventRecord(event, gone);
}

static void destroy_what_is_gone(void)
{
	(void)cuStreamDestroy(make_gone());
}

Test(fakecuda, a_process_that_uses_a_destroyed_stream_is_aborted)
{
	cr_expect(ends_with(ask_what_is_gone, "StreamQuery"));
	cr_expect(ends_with(record_in_what_is_gone, "EventRecord"));
	cr_expect(ends_with(destroy_what_is_gone, "StreamDestroy"));
}

/* --- VMM ----------------------------------------------------------------- */

Test(fakecuda, invalid_allocations_are_refused)
{
	static const struct {
		uint64_t size;
		CUdevice device;
		int types;
		unsigned long long flags;
		CUresult result;
	} cases[] = {
		{0, 0, 1, 0, CUDA_ERROR_INVALID_VALUE},
		{CHUNK - 4096, 0, 1, 0, CUDA_ERROR_INVALID_VALUE},
		{CHUNK, 0, 1, 1, CUDA_ERROR_INVALID_VALUE},
		{CHUNK, 0, 2, 0, CUDA_ERROR_INVALID_VALUE},
		{CHUNK, 2, 1, 0, CUDA_ERROR_INVALID_DEVICE},
		{CHUNK, -1, 1, 0, CUDA_ERROR_INVALID_DEVICE},
		{UINT64_C(1) << 40, 0, 1, 0, CUDA_ERROR_OUT_OF_MEMORY},
	};
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp prop;

	OK(cuInit(0));
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		prop = vmm_prop(cases[i].device);
		prop.requestedHandleTypes = cases[i].types;
		cr_expect(eq(int,
			     (int)cuMemCreate(&handle, cases[i].size, &prop,
					      cases[i].flags),
			     (int)cases[i].result),
			  "case %zu", i);
	}
}

Test(fakecuda, invalid_mappings_are_refused)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;

	OK(cuInit(0));
	EXPECT_RESULT(cuMemAddressReserve(&at, CHUNK + 4096, 0, 0, 0),
		      CUDA_ERROR_INVALID_VALUE);
	EXPECT_RESULT(cuMemAddressReserve(&at, CHUNK, 3 * MIB, 0, 0),
		      CUDA_ERROR_INVALID_VALUE);
	handle = vmm_new(2 * CHUNK);
	OK(cuMemAddressReserve(&at, 4 * CHUNK, 0, 0, 0));
	EXPECT_RESULT(cuMemMap(at, CHUNK, CHUNK, handle, 0),
		      CUDA_ERROR_NOT_SUPPORTED);
	EXPECT_RESULT(cuMemMap(at, CHUNK, 0, handle, 0),
		      CUDA_ERROR_NOT_SUPPORTED);
	EXPECT_RESULT(cuMemMap(at + 4096, CHUNK, 0, handle, 0),
		      CUDA_ERROR_INVALID_VALUE);
	EXPECT_RESULT(cuMemMap(at, 3 * CHUNK, 0, handle, 0),
		      CUDA_ERROR_NOT_SUPPORTED);
	EXPECT_RESULT(cuMemMap(at + 3 * CHUNK, 2 * CHUNK, 0, handle, 0),
		      CUDA_ERROR_INVALID_VALUE);
	EXPECT_RESULT(cuMemMap(at, CHUNK, 0, handle + 1, 0),
		      CUDA_ERROR_INVALID_VALUE);
	OK(cuMemMap(at, 2 * CHUNK, 0, handle, 0));
	EXPECT_RESULT(cuMemMap(at + CHUNK, CHUNK, 0, handle, 0),
		      CUDA_ERROR_INVALID_VALUE);
	EXPECT_RESULT(cuMemUnmap(at, CHUNK), CUDA_ERROR_INVALID_VALUE);
	EXPECT_RESULT(cuMemUnmap(at, 3 * CHUNK), CUDA_ERROR_INVALID_VALUE);
	EXPECT_RESULT(cuMemAddressFree(at, 4 * CHUNK),
		      CUDA_ERROR_INVALID_VALUE);
	EXPECT_RESULT(vmm_access(at, CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READ),
		      CUDA_ERROR_INVALID_VALUE);
	EXPECT_RESULT(vmm_access(at, 2 * CHUNK, 2), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemUnmap(at, 2 * CHUNK));
	EXPECT_RESULT(cuMemAddressFree(at, CHUNK), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemAddressFree(at, 4 * CHUNK));
}

Test(fakecuda, one_access_may_cover_several_mappings)
{
	CUmemGenericAllocationHandle a, b;
	CUdeviceptr at;

	use_device(0);
	a = vmm_new(CHUNK);
	b = vmm_new(CHUNK);
	OK(cuMemAddressReserve(&at, 2 * CHUNK, 0, 0, 0));
	OK(cuMemMap(at, CHUNK, 0, a, 0));
	OK(cuMemMap(at + CHUNK, CHUNK, 0, b, 0));
	OK(vmm_access(at, 2 * CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
	poke(at + CHUNK - 8, 5);
	OK(cuMemcpyDtoDAsync(at + CHUNK, at + CHUNK - 8, 8, NULL));
	cr_expect(eq(u64, peek(at + CHUNK), 5));
	OK(cuMemUnmap(at, 2 * CHUNK));
}

/* Fills and copies to this address are refused. Other work that writes there
 * breaks the context, which only a later call reports. */
static void expect_fault(CUdeviceptr at)
{
	CUmemGenericAllocationHandle handle;
	uint64_t word = 0;
	CUstream stream;

	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	EXPECT_RESULT(cuMemsetD8(at, 1, 64), CUDA_ERROR_INVALID_VALUE);
	EXPECT_RESULT(cuMemcpyHtoD(at, &word, 8), CUDA_ERROR_INVALID_VALUE);
	OK(cuCtxSynchronize());
	OK(cuStreamWriteValue64(stream, at, 1, 0));
	EXPECT_RESULT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT_RESULT(cuMemsetD8(at, 1, 64), CUDA_ERROR_ILLEGAL_ADDRESS);
	/* Memory does not belong to a context. */
	EXPECT_RESULT(vmm_try(CHUNK, &handle), CUDA_SUCCESS);
}

Test(fakecuda, a_mapping_without_access_cannot_be_used)
{
	use_device(0);
	expect_fault(vmm_map_at(vmm_new(CHUNK), CHUNK, 0));
}

Test(fakecuda, a_read_only_mapping_cannot_be_written)
{
	CUdeviceptr at;

	use_device(0);
	at = vmm_map_at(vmm_new(CHUNK), CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READ);
	cr_expect(eq(u64, peek(at), 0));
	expect_fault(at);
}

Test(fakecuda, access_applies_only_to_the_given_device)
{
	CUdeviceptr at;

	use_device(1);
	at = vmm_map_at(vmm_new(CHUNK), CHUNK,
			CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	expect_fault(at);
}

Test(fakecuda, memory_unmapped_too_early_is_a_fault)
{
	struct words words;
	CUstream stream;
	CUdeviceptr at;

	use_device(0);
	words = new_words();
	stream = new_stream();
	at = vmm_map_at(vmm_new(CHUNK), CHUNK,
			CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	OK(cuStreamWaitValue64(stream, words.device, 1, 0));
	OK(cuMemsetD8Async(at, 1, 64, stream));
	vmm_unmap_at(at, CHUNK);
	*words.host = 1;
	EXPECT_RESULT(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
}

Test(fakecuda, memory_is_exported_only_as_a_requested_handle_type)
{
	CUmemAllocationProp prop = vmm_prop(0), found;
	CUmemGenericAllocationHandle handle;
	int fd = -1;

	OK(cuInit(0));
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
	prop.location.id = 1;
	OK(cuMemCreate(&handle, CHUNK, &prop, 0));
	EXPECT_RESULT(cuMemExportToShareableHandle(
			      &fd, handle,
			      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
		      CUDA_ERROR_INVALID_VALUE);
	OK(cuMemGetAllocationPropertiesFromHandle(&found, handle));
	cr_expect(eq(int, found.requestedHandleTypes, 0));
	cr_expect(eq(int, found.location.id, 1));
}

Test(fakecuda, the_handle_of_a_mapping_can_be_retained)
{
	CUmemGenericAllocationHandle handle, again;
	CUdeviceptr at;

	OK(cuInit(0));
	handle = vmm_new(CHUNK);
	at = vmm_map_at(handle, CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READ);
	OK(cuMemRelease(handle));
	EXPECT_RESULT(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(at + 5)));
	cr_expect(eq(u64, again, handle));
	vmm_unmap_at(at, CHUNK);
	at = vmm_map_at(again, CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READ);
	OK(cuMemRelease(again));
	vmm_unmap_at(at, CHUNK);
	EXPECT_RESULT(
		cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)at),
		CUDA_ERROR_INVALID_VALUE);
}

static bool is_same_file(int a, int b)
{
	return syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILE,
		       (unsigned long)a, (unsigned long)b) == 0;
}

Test(fakecuda, a_process_may_import_its_own_memory)
{
	CUmemGenericAllocationHandle handle, again;
	CUdeviceptr at, other;
	int fd;

	use_device(0);
	handle = vmm_new(CHUNK);
	fd = vmm_fd(handle);
	OK(vmm_import(fd, &again));
	close(fd);
	cr_expect(ne(u64, handle, again));
	at = vmm_map_at(handle, CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	other = vmm_map_at(again, CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READ);
	poke(at, 77);
	cr_expect(eq(u64, peek(other), 77));
}

Test(fakecuda, each_export_is_a_separate_file)
{
	CUmemGenericAllocationHandle handle;
	int one, two, copy;

	OK(cuInit(0));
	handle = vmm_new(CHUNK);
	one = vmm_fd(handle);
	two = vmm_fd(handle);
	copy = fcntl(one, F_DUPFD_CLOEXEC, 3);
	cr_expect(is_same_file(one, copy));
	cr_expect(not(is_same_file(one, two)));
	/* Each of the two files keeps the memory by itself. */
	OK(cuMemRelease(handle));
	close(one);
	close(copy);
	OK(vmm_import(two, &handle));
	close(two);
}

Test(fakecuda, imported_memory_cannot_be_exported)
{
	CUmemGenericAllocationHandle handle, again;
	int fd;

	OK(cuInit(0));
	handle = vmm_new(CHUNK);
	fd = vmm_fd(handle);
	OK(vmm_import(fd, &again));
	EXPECT_RESULT(cuMemExportToShareableHandle(
			      &fd, again,
			      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
		      CUDA_ERROR_INVALID_VALUE);
}

Test(fakecuda, descriptors_of_other_files_are_refused_as_memory)
{
	CUmemGenericAllocationHandle handle;
	int fd = memfd_create("other", 0);

	OK(cuInit(0));
	MUST(ftruncate(fd, CHUNK) == 0);
	EXPECT_RESULT(vmm_import(fd, &handle), CUDA_ERROR_UNKNOWN);
	close(fd);
	EXPECT_RESULT(vmm_import(fd, &handle), CUDA_ERROR_INVALID_VALUE);
}

/* --- pointers ------------------------------------------------------------ */

Test(fakecuda, a_freed_address_is_reused)
{
	CUdeviceptr at, again, base;
	size_t size;

	use_device(0);
	OK(cuMemAlloc(&at, 1000));
	OK(cuMemGetAddressRange(&base, &size, at + 999));
	cr_expect(eq(u64, base, at));
	cr_expect(eq(sz, size, 1000));
	EXPECT_RESULT(cuMemGetAddressRange(&base, &size, at + 1000),
		      CUDA_ERROR_NOT_FOUND);
	EXPECT_RESULT(cuMemFree(at + 8), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemFree(at));
	EXPECT_RESULT(cuMemFree(at), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemAlloc(&again, 1000));
	cr_expect(eq(u64, again, at));
}

static void ask_pointer(void *ret, CUpointer_attribute attribute,
			CUdeviceptr at)
{
	OK(cuPointerGetAttributes(1, &attribute, &ret, at));
}

Test(fakecuda, pointer_attributes_describe_the_memory)
{
	CUpointer_attribute both[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
				      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
	unsigned int type = 9;
	unsigned long long id[2];
	CUdeviceptr at, vmm;
	uint64_t types;
	int ordinal = 9;
	void *values[] = {&type, &ordinal};
	bool is_legacy;

	use_device(0);
	OK(cuMemAlloc(&at, 64));
	vmm = vmm_map_at(vmm_new(CHUNK), CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READ);
	ask_pointer(&is_legacy, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
		    at);
	cr_expect(is_legacy == true);
	ask_pointer(&is_legacy, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
		    vmm);
	cr_expect(not(is_legacy));
	ask_pointer(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, vmm);
	cr_expect(eq(u64, types, 1));
	OK(cuPointerGetAttributes(2, both, values, vmm));
	cr_expect(eq(uint, type, CU_MEMORYTYPE_DEVICE));
	cr_expect(eq(int, ordinal, 0));
	ask_pointer(&id[0], CU_POINTER_ATTRIBUTE_BUFFER_ID, at);
	OK(cuMemFree(at));
	OK(cuPointerGetAttributes(2, both, values, at));
	cr_expect(eq(int, ordinal, -2));
	OK(cuMemAlloc(&at, 64));
	ask_pointer(&id[1], CU_POINTER_ATTRIBUTE_BUFFER_ID, at);
	cr_expect(ne(u64, id[0], id[1]));
}

static CUdeviceptr *reserved;

static int reserve(void)
{
	OK(cuInit(0));
	OK(cuMemAddressReserve(reserved, CHUNK, 0, 0, 0));
	return 0;
}

Test(fakecuda, processes_have_different_addresses)
{
	struct actor actor;
	CUdeviceptr first;

	reserved = shared_memory(4096);
	actor_start(&actor, NULL);
	cr_assert(zero(int, actor_run(&actor, reserve)));
	first = *reserved;
	actor_kill(&actor);
	cr_assert(zero(int, reserve()));
	cr_expect(ne(u64, first, *reserved));
}

static void leave(int signal)
{
	(void)signal;
	_exit(0);
}

/* Act like a program that uses a device pointer as its own. */
static int touch(void)
{
	CUdeviceptr at;

	signal(SIGSEGV, leave);
	use_device(0);
	OK(cuMemAlloc(&at, 64));
	*(volatile char *)(uintptr_t)at = 1;
	return 0;
}

Test(fakecuda, a_process_that_touches_device_memory_on_the_cpu_dies)
{
	struct actor actor;
	int key = pkey_alloc(0, 0);

	if (key < 0)
		cr_skip_test("this CPU has no protection keys");
	pkey_free(key);
	actor_start(&actor, NULL);
	cr_expect(eq(int, actor_run(&actor, touch), -ECHILD));
	actor_kill(&actor);
}
