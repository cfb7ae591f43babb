/*
 * Processes that share memory, and the commands for them.
 */
#include "tests/lib/sharing.h"
#include "cuda/context.h"
#include "tests/lib/gpu.h"
#include <string.h>

#define MAX_KEPT 64

struct sharing sharing;

/* Variables of this process. */
static struct fsdp_tensor *kept[MAX_KEPT], *shared;
static size_t n_kept;

static void open_client(void)
{
	struct fsdp_connect_options options = {.path = sharing.page->socket};

	must(fsdp_connect(&options, &sharing.client) == 0);
}

/* --- memory -------------------------------------------------------------- */

/* Returns when the bytes have arrived. */
static void fill(CUdeviceptr at, uint8_t value, uint64_t size)
{
	must(context_enter(gpu_nth(0), NULL) == 0);
	must(cu.MemsetD8(at, value, size) == CUDA_SUCCESS);
	must(cu.CtxSynchronize() == CUDA_SUCCESS);
	context_leave();
}

void *legacy_make(uint8_t value)
{
	CUdeviceptr at;
	CUresult result;

	must(context_enter(gpu_nth(0), NULL) == 0);
	result = cu.MemAlloc(&at, SHARED_SIZE);
	context_leave();
	if (result != CUDA_SUCCESS)
		return NULL;
	fill(at, value, SHARED_SIZE);
	return (void *)(uintptr_t)at;
}

void legacy_free(void *memory)
{
	must(context_enter(gpu_nth(0), NULL) == 0);
	must(cu.MemFree((uintptr_t)memory) == CUDA_SUCCESS);
	context_leave();
}

/* Allocates other memory at its address. */
static void back(struct vmm_memory *memory, unsigned int types, uint8_t value)
{
	const struct device *gpu = gpu_nth(0);
	const CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE,
					gpu->ordinal};
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = (CUmemAllocationHandleType)types,
		.location = location,
	};
	const CUmemAccessDesc access = {location,
					CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

	must(cu.MemCreate(&memory->handle, memory->size, &prop, 0) ==
	     CUDA_SUCCESS);
	must(cu.MemMap(memory->address, memory->size, 0, memory->handle, 0) ==
	     CUDA_SUCCESS);
	must(cu.MemSetAccess(memory->address, memory->size, &access, 1) ==
	     CUDA_SUCCESS);
	fill(memory->address, value, memory->size);
}

static void unback(struct vmm_memory *memory)
{
	must(cu.MemUnmap(memory->address, memory->size) == CUDA_SUCCESS);
	must(cu.MemRelease(memory->handle) == CUDA_SUCCESS);
}

void vmm_make(struct vmm_memory *memory, unsigned int types, uint8_t value)
{
	memory->size = gpu_nth(0)->granularity;
	must(context_enter(gpu_nth(0), NULL) == 0);
	must(cu.MemAddressReserve(&memory->address, memory->size, 0, 0, 0) ==
	     CUDA_SUCCESS);
	back(memory, types, value);
	context_leave();
}

void vmm_renew(struct vmm_memory *memory, uint8_t value)
{
	must(context_enter(gpu_nth(0), NULL) == 0);
	unback(memory);
	back(memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, value);
	context_leave();
}

void vmm_end(struct vmm_memory *memory)
{
	must(context_enter(gpu_nth(0), NULL) == 0);
	unback(memory);
	must(cu.MemAddressFree(memory->address, memory->size) == CUDA_SUCCESS);
	context_leave();
}

/* --- tensors ------------------------------------------------------------- */

int try_share(const void *memory, uint64_t size, struct fsdp_tensor **ret)
{
	const struct fsdp_spec spec = {FSDP_U8, 1, {(int64_t)size}};
	void *pointer = (void *)(uintptr_t)memory;

	return fsdp_share(sharing.client, &spec, &pointer, 1, NULL, ret);
}

struct fsdp_tensor *share(const void *memory, uint64_t size)
{
	struct fsdp_tensor *tensor = NULL;

	must(try_share(memory, size, &tensor) == 0);
	return tensor;
}

int publish_as(struct fsdp_tensor *tensor, const char *name)
{
	struct fsdp_publication it = {.tensor = tensor,
				      .name = name,
				      .flags = name ? FSDP_REPLACE : 0};

	return fsdp_publish(sharing.client, &it, 1);
}

struct fsdp_tensor *share_as(const char *name, const void *memory)
{
	struct fsdp_tensor *tensor = share(memory, SHARED_SIZE);

	must(publish_as(tensor, name) == 0);
	return tensor;
}

int try_get(const char *name, struct fsdp_tensor **ret)
{
	return fsdp_get(sharing.client, &name, 1, NULL, ret);
}

bool says(const char *part)
{
	return strstr(fsdp_error(), part) != NULL;
}

bool nothing_is_left(uint64_t n_sessions)
{
	/* The broker keeps grants of freed tensors for later ones. */
	const struct figures nothing = {.sessions = n_sessions,
					.grants = FIGURE_ANY};

	return figures_await(sharing.client, &nothing);
}

struct parked {
	uint32_t pid;
	bool is_waiting;
};

static int note_parked(const struct fsdp_peer *peer, void *data)
{
	struct parked *parked = data;

	if (peer->pid == parked->pid)
		parked->is_waiting = peer->n_waiting > 0;
	return 0;
}

void await_parked(pid_t pid)
{
	struct parked parked = {.pid = (uint32_t)pid};

	for (int ms = 0; !parked.is_waiting; ms++) {
		must(ms < PATIENCE_MS);
		must(fsdp_clients(sharing.client, note_parked, &parked) == 0);
		if (!parked.is_waiting)
			nap_ms(1);
	}
}

/* --- for actors ---------------------------------------------------------- */

static int tell(int r)
{
	snprintf(sharing.page->sentence, sizeof(sharing.page->sentence), "%s",
		 fsdp_error());
	return r;
}

int actor_connects(void)
{
	open_client();
	return 0;
}

static int keep(struct fsdp_tensor *tensor)
{
	struct sharing_page *page = sharing.page;

	must(n_kept < MAX_KEPT);
	kept[n_kept++] = tensor;
	page->address = (uint64_t)(uintptr_t)fsdp_data(tensor);
	must(!fsdp_data_mut(tensor));
	return fsdp_copy_out(&page->seen, tensor, 0, 1);
}

int actor_gets(void)
{
	struct fsdp_tensor *tensor = NULL;
	int r = try_get(sharing.page->name, &tensor);

	return tell(r == 0 ? keep(tensor) : r);
}

int actor_redeems(void)
{
	struct fsdp_tensor *tensor = NULL;
	int r = fsdp_ticket_redeem(sharing.client, &sharing.page->ticket, 1,
				   &tensor);

	return tell(r == 0 ? keep(tensor) : r);
}

int actor_lets_go(void)
{
	must(n_kept > 0);
	fsdp_free(kept[--n_kept]);
	return 0;
}

int actor_lets_go_late(void)
{
	CUstream stream = stream_make(gpu_nth(0));

	must(n_kept > 0);
	stream_hold(stream, &sharing.page->gate);
	must(fsdp_release_on(kept[n_kept - 1], stream) == 0);
	return actor_lets_go();
}

int actor_checks(void)
{
	must(n_kept > 0);
	return tell(fsdp_tensor_check(kept[n_kept - 1]));
}

int actor_shares(void)
{
	void *memory = legacy_make(sharing.page->value);

	must(memory);
	shared = share_as(sharing.page->name, memory);
	sharing.page->address = (uint64_t)(uintptr_t)memory;
	return 0;
}

int actor_donates(void)
{
	struct vmm_memory memory;

	vmm_make(&memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		 sharing.page->value);
	shared = share((void *)(uintptr_t)memory.address, memory.size);
	return publish_as(shared, sharing.page->name);
}

int actor_unshares(void)
{
	return tell(fsdp_unshare(shared, sharing.page->timeout_ms));
}

/* --- all of it ----------------------------------------------------------- */

void sharing_open(void)
{
	const struct daemon_options options = {
		.is_supervised = true,
		.config = "[memory]\nwarm_ms = 10ms\n",
	};

	gpu_open();
	setenv("FAKECUDA_COUNT", "1", 1);
	daemon_start_with(&sharing.daemon, &options);
	sharing.page = shared_memory(sizeof(*sharing.page));
	strcpy(sharing.page->socket, daemon_socket(&sharing.daemon));
	must(sem_init(&sharing.page->gate, 1, 0) == 0);
	actor_start(&sharing.one, NULL);
	actor_start(&sharing.two, NULL);
	open_client();
	must(actor_run(&sharing.one, actor_connects) == 0);
	must(actor_run(&sharing.two, actor_connects) == 0);
}

void sharing_close(void)
{
	actor_kill(&sharing.one);
	actor_kill(&sharing.two);
	fsdp_close(sharing.client);
	daemon_stop(&sharing.daemon);
	gpu_close();
}
