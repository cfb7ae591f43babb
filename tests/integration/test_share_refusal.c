/*
 * Tests what cannot be shared. The library refuses it after it asked the
 * driver, and the broker refuses it to clients that do not ask. A refusal
 * changes nothing.
 */
#include "cuda/ipc.h"
#include "cuda/vmm.h"
#include "proto/error.h"
#include "tests/lib/check.h"
#include "tests/lib/gpu.h"
#include "tests/lib/sharing.h"
#include "tests/lib/wire.h"
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- by the library ------------------------------------------------------ */

TestSuite(share_refusal, .init = sharing_open, .fini = sharing_close,
	  .timeout = 300);

static void expect_refused(const void *memory, uint64_t size, int code,
			   const char *part)
{
	struct fsdp_tensor *tensor = NULL;

	cr_expect(eq(int, try_share(memory, size, &tensor), code), "%s: %s",
		  part, fsdp_error());
	cr_expect(says(part), "%s: %s", part, fsdp_error());
	cr_expect(eq(ptr, tensor, NULL));
}

Test(share_refusal, memory_other_than_device_memory_is_refused)
{
	int on_stack = 0;

	expect_refused(&on_stack, 1, -EINVAL, "not device memory");
	expect_refused(NULL, 1, -EINVAL, "not device memory");
	must(legacy_make(1));
	expect_refused(&on_stack, 1, -EINVAL, "not device memory");
	expect_refused(pinned_memory(4096), 1, -EINVAL, "not device memory");
	cr_expect(nothing_is_left(3));
}

Test(share_refusal, a_tensor_that_exceeds_its_allocation_is_refused)
{
	uint8_t *memory = legacy_make(1);
	const struct fsdp_spec floats = {FSDP_F32, 1, {4}};
	void *odd = memory + 2;
	struct fsdp_tensor *tensor = NULL;

	expect_refused(memory, SHARED_SIZE + 1, -EINVAL, "extends beyond");
	expect_refused(memory + 1, SHARED_SIZE, -EINVAL, "extends beyond");
	cr_expect(
		eq(int,
		   fsdp_share(sharing.client, &floats, &odd, 1, NULL, &tensor),
		   -EINVAL));
	cr_expect(says("aligned"), "%s", fsdp_error());
	cr_expect(nothing_is_left(3));
}

Test(share_refusal, tensors_in_several_allocations_are_refused)
{
	const struct fsdp_spec specs[2] = {{FSDP_U8, 1, {16}},
					   {FSDP_U8, 1, {16}}};
	void *pointers[2] = {legacy_make(1), legacy_make(2)};
	struct fsdp_tensor *tensors[2] = {NULL};

	cr_expect(eq(
		int,
		fsdp_share(sharing.client, specs, pointers, 2, NULL, tensors),
		-EINVAL));
	cr_expect(says("pointers[1]"), "%s", fsdp_error());
	cr_expect(nothing_is_left(3));
}

Test(share_refusal, virtual_memory_created_without_a_handle_is_refused)
{
	struct vmm_memory memory;

	vmm_make(&memory, CU_MEM_HANDLE_TYPE_NONE, 1);
	expect_refused((void *)(uintptr_t)memory.address, 16, -EOPNOTSUPP,
		       "POSIX_FILE_DESCRIPTOR");
	cr_expect(nothing_is_left(3));
}

Test(share_refusal, memory_of_the_broker_is_refused)
{
	struct fsdp_device gpu = gpu_name(0);
	const struct fsdp_spec spec = {FSDP_U8, 1, {4096}};
	struct fsdp_tensor *tensor = NULL;

	must(fsdp_alloc_on(sharing.client, &gpu, &spec, 1, NULL, 0, &tensor) ==
	     0);
	expect_refused(fsdp_data(tensor), 16, -EINVAL, "fsdp_view");
	cr_expect(eq(int, fsdp_unshare(tensor, 0), -EPERM));
	cr_expect(says("did not share"), "%s", fsdp_error());
	cr_expect(zero(int, fsdp_release(tensor)), "it is held still");
	fsdp_free(tensor);
}

static int asks_for_it_back(void)
{
	struct fsdp_tensor *tensor = NULL;
	int r;

	must(try_get("t/a", &tensor) == 0);
	r = fsdp_unshare(tensor, 0);
	must(fsdp_release(tensor) == 0);
	fsdp_free(tensor);
	return r;
}

Test(share_refusal, a_process_other_than_the_sharer_cannot_unshare)
{
	struct fsdp_tensor *tensor = share_as("t/a", legacy_make(7));

	cr_expect(eq(int, actor_run(&sharing.one, asks_for_it_back), -EPERM));
	strcpy(sharing.page->name, "t/a");
	cr_expect(zero(int, actor_run(&sharing.two, actor_gets)));
	fsdp_free(tensor);
}

Test(share_refusal, memory_freed_without_unsharing_is_not_opened)
{
	void *memory = legacy_make(7);
	struct fsdp_tensor *tensor = share_as("t/a", memory);

	need_fake("it must be another machine");
	legacy_free(memory);
	strcpy(sharing.page->name, "t/a");
	cr_expect(eq(int, actor_run(&sharing.one, actor_gets), -EINVAL));
	cr_expect(ne(ptr, strstr(sharing.page->sentence, "open the memory"),
		     NULL),
		  "%s", sharing.page->sentence);
	cr_expect(zero(int, fsdp_unshare(tensor, PATIENCE_MS)), "%s",
		  fsdp_error());
	fsdp_free(tensor);
	cr_expect(nothing_is_left(3));
}

Test(share_refusal, the_size_of_a_batch_is_limited)
{
	struct fsdp_tensor *tensors[2] = {NULL};
	static struct fsdp_spec specs[FSDP_MAX_BATCH + 1];
	static void *pointers[FSDP_MAX_BATCH + 1];

	cr_expect(eq(int,
		     fsdp_share(sharing.client, specs, pointers,
				FSDP_MAX_BATCH + 1, NULL, tensors),
		     -E2BIG));
	cr_expect(zero(int, fsdp_share(sharing.client, specs, pointers, 0, NULL,
				       tensors)));
}

/* --- by the broker ------------------------------------------------------- */

static struct daemon daemon_;
static struct wire *alice, *bob;
static struct wire_counts before;
static struct ipc_export *export;
static struct vmm_memory donated;
static struct vmm_export *donation;

static void begin_wire(void)
{
	struct error err = ERROR_NULL;
	struct pointer pointer;

	gpu_open();
	daemon_start(&daemon_);
	alice = wire_open(daemon_socket(&daemon_));
	bob = wire_open(daemon_socket(&daemon_));
	must(pointer_find((uintptr_t)legacy_make(1), &pointer, &err) == 0);
	must(ipc_export(&pointer, &export, &err) == 0);
	vmm_make(&donated, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1);
	must(vmm_export(donated.address, &donation, &err) == 0);
	wire_count(alice, &before);
}

static void end_wire(void)
{
	wire_close(alice);
	wire_close(bob);
	daemon_stop(&daemon_);
	gpu_close();
}

TestSuite(share_wire, .init = begin_wire, .fini = end_wire, .timeout = 300);

/* This is a valid request for one tensor of 16 bytes. */
struct offer {
	struct share_item item;
	struct request request;
	const int *fds;
	uint16_t n_fds;
};

static void offer_legacy(struct offer *offer)
{
	*offer = (struct offer){
		.item = {.type = {.dtype = DTYPE_U8,
				  .n_dims = 1,
				  .shape = {16},
				  .strides = {1}}},
		.request = {.kind = MESSAGE_SHARE,
			    .share = {.device = gpu_nth(0)->uuid,
				      .access = {.gid = GID_DEFAULT},
				      .has_handle = true,
				      .size = SHARED_SIZE,
				      .n_items = 1,
				      .items = &offer->item}},
	};
	memcpy(offer->request.share.handle, &export->handle, HANDLE_SIZE);
}

static void offer_donated(struct offer *offer)
{
	offer_legacy(offer);
	offer->request.share.has_handle = false;
	offer->request.share.size = donated.size;
	offer->fds = &donation->fd;
	offer->n_fds = 1;
}

/* Send the offer. Returns the code. */
static int wire_offer(struct wire *wire, const struct offer *offer)
{
	struct error err = ERROR_NULL;
	uint8_t *body;
	size_t size;

	must(request_encode(&offer->request, &body, &size, &err) == 0);
	wire_send_body(wire, MESSAGE_SHARE, ++wire->number, body, size,
		       offer->fds, offer->n_fds);
	free(body);
	if (wire_receive(wire) != FRAME_OK)
		return -ECONNRESET;
	return wire->frame.code;
}

static void expect_no_offer(const struct offer *offer, int code,
			    const char *part)
{
	struct wire_counts after;

	cr_expect(eq(int, wire_offer(alice, offer), code), "%s: %s", part,
		  wire_sentence(alice));
	cr_expect(ne(ptr, strstr(wire_sentence(alice), part), NULL), "%s: %s",
		  part, wire_sentence(alice));
	wire_count(alice, &after);
	cr_expect(eq(ptr, (void *)wire_counts_differ(&before, &after), NULL),
		  "%s: %s", part, wire_counts_differ(&before, &after));
}

static struct tensor_place must_offer(struct wire *wire,
				      const struct offer *offer)
{
	cr_assert(zero(int, wire_offer(wire, offer)), "%s",
		  wire_sentence(wire));
	cr_assert(eq(u32, wire->reply.places.n_places, 1));
	return wire->reply.places.places[0];
}

static int wire_unshare(struct wire *wire, const struct slot_ref *ref)
{
	const struct request request = {.kind = MESSAGE_UNSHARE,
					.unshare = {.ref = *ref}};

	return wire_call(wire, &request);
}

Test(share_wire, an_invalid_handle_is_refused)
{
	struct offer offer;

	offer_legacy(&offer);
	offer.request.share.handle[0] = HANDLE_VERSION + 1;
	expect_no_offer(&offer, -EBADMSG, "version");
	offer_legacy(&offer);
	offer.request.share.handle[1] = HANDLE_EVENT;
	expect_no_offer(&offer, -EINVAL, "handle");
	offer_legacy(&offer);
	memset(offer.request.share.handle, 0, MESSAGE_HANDLE_SIZE);
	expect_no_offer(&offer, -EINVAL, "handle");
	offer_legacy(&offer);
	offer.request.share.size++;
	expect_no_offer(&offer, -EINVAL, "bytes");
}

Test(share_wire, a_range_outside_of_the_allocation_is_refused)
{
	struct offer offer;

	offer_legacy(&offer);
	offer.item.offset = SHARED_SIZE - 15;
	expect_no_offer(&offer, -ERANGE, "outside of the allocation");
	offer.item.offset = UINT64_MAX - 3;
	expect_no_offer(&offer, -ERANGE, "outside of the allocation");
	offer_donated(&offer);
	offer.item.offset = donated.size;
	expect_no_offer(&offer, -ERANGE, "outside of the allocation");
	offer.item = (struct share_item){.type = {.dtype = DTYPE_F32,
						  .n_dims = 1,
						  .shape = {4},
						  .strides = {1}},
					 .offset = 2};
	expect_no_offer(&offer, -EINVAL, "offset 2");
}

Test(share_wire, an_unknown_device_is_refused)
{
	struct offer offer;

	offer_legacy(&offer);
	memset(offer.request.share.device.bytes, 0xee, 16);
	expect_no_offer(&offer, -ENODEV, "GPU-eeeeeeee");
	memset(offer.request.share.device.bytes, 0, 16);
	expect_no_offer(&offer, -EINVAL, "host");
	if (n_gpus() < 2)
		return;
	offer_donated(&offer);
	offer.request.share.device = gpu_nth(1)->uuid;
	expect_no_offer(&offer, -EINVAL, "device");
}

static int make_memfd(void)
{
	int fd = memfd_create("no device memory", MFD_CLOEXEC);

	must(fd >= 0 && ftruncate(fd, (off_t)donated.size) == 0);
	return fd;
}

Test(share_wire, a_descriptor_of_another_file_is_refused)
{
	const int memfd = make_memfd();
	int pipe_fds[2];
	struct offer offer;

	must(pipe(pipe_fds) == 0);
	offer_donated(&offer);
	offer.fds = &memfd;
	expect_no_offer(&offer, -EINVAL, "not memory of device");
	offer.fds = &pipe_fds[0];
	expect_no_offer(&offer, -EINVAL, "not device memory");
	offer_donated(&offer);
	offer.request.share.size -= 1;
	expect_no_offer(&offer, -EINVAL, "a chunk cannot have");
	close(memfd);
	close(pipe_fds[0]);
	close(pipe_fds[1]);
}

Test(share_wire, too_many_or_too_few_descriptors_are_refused)
{
	const int two[2] = {donation->fd, donation->fd};
	struct offer offer;

	offer_donated(&offer);
	offer.n_fds = 0;
	expect_no_offer(&offer, -EINVAL, "neither");
	offer_legacy(&offer);
	offer.fds = &donation->fd;
	offer.n_fds = 1;
	expect_no_offer(&offer, -EINVAL, "both");
	offer_donated(&offer);
	offer.fds = two;
	offer.n_fds = 2;
	cr_expect(lt(int, wire_offer(bob, &offer), 0));
	cr_expect(zero(u64, wire_status(alice, "slots")));
	cr_expect(zero(u64, wire_status(alice, "chunks")));
}

Test(share_wire, the_same_allocation_is_one_chunk)
{
	struct offer offer;
	struct tensor_place one, two;

	offer_legacy(&offer);
	one = must_offer(alice, &offer);
	two = must_offer(alice, &offer);
	cr_expect(eq(u32, one.chunk, two.chunk));
	cr_expect(ne(u32, one.ref.slot, two.ref.slot));
	offer.request.share.access.mode = 0644;
	two = must_offer(alice, &offer);
	cr_expect(ne(u32, one.chunk, two.chunk), "for others to read");
}

Test(share_wire, only_the_sharer_can_unshare)
{
	struct tensor_place place;
	struct slot_ref other;
	struct offer offer;

	offer_legacy(&offer);
	place = must_offer(alice, &offer);
	other = place.ref;
	cr_expect(eq(int, wire_unshare(bob, &place.ref), -EPERM), "%s",
		  wire_sentence(bob));
	other.generation += 1000;
	cr_expect(zero(int, wire_unshare(alice, &other)), "%s",
		  wire_sentence(alice));
	cr_expect(zero(int, wire_unshare(alice, &place.ref)), "%s",
		  wire_sentence(alice));
	cr_expect(zero(int, wire_unshare(alice, &place.ref)));
	must(wire_alloc(alice, 16, &(struct access_class){.gid = GID_DEFAULT},
			0, &place) == 0);
	cr_expect(eq(int, wire_unshare(alice, &place.ref), -EPERM));
}

Test(share_wire, a_handle_of_a_dead_producer_is_refused)
{
	struct tensor_place place;
	struct offer offer;

	offer_legacy(&offer);
	place = must_offer(alice, &offer);
	must(wire_publish(alice, &place.ref, "t/a", 0) == 0);
	must(wire_get(bob, "t/a", &place) == 0);
	wire_goodbye(alice);
	alice = NULL;
	cr_expect(eq(int, wire_chunk(bob, place.chunk), -EOWNERDEAD), "%s",
		  wire_sentence(bob));
	must(wire_release(bob, &place.ref) == 0);
	wire_wait_status(bob, "slots", 0);
	wire_wait_status(bob, "chunks", 0);
}

static struct tensor_place secret;

static int ask_for_chunk(void)
{
	return wire_chunk(wire_open(daemon_socket(&daemon_)), secret.chunk);
}

static int ask_for_name(void)
{
	struct tensor_place place;

	return wire_get(wire_open(daemon_socket(&daemon_)), "t/a", &place);
}

Test(share_wire, a_user_without_permission_to_read_gets_no_handle)
{
	const struct identity somebody = {.uid = 61001, .gid = 61001};
	struct actor actor;
	struct offer offer;

	if (!actor_may_be_others())
		cr_skip_test("needs root, to be two users");
	must(chmod(daemon_.dir, 0755) == 0);
	offer_legacy(&offer);
	secret = must_offer(alice, &offer);
	must(wire_publish(alice, &secret.ref, "t/a", 0) == 0);
	actor_start(&actor, &somebody); /* this actor needs no driver */
	cr_expect(eq(int, actor_run(&actor, ask_for_chunk), -EACCES));
	cr_expect(eq(int, actor_run(&actor, ask_for_name), -EACCES));
	actor_kill(&actor);
}
