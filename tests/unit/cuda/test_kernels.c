/*
 * Compares kernels, launched through the driver, with the definitions in
 * cuda/kernels.h. On the fake driver this checks tables, launches and the
 * fake's own versions; with FSDP_LIBCUDA unset, on a machine with a GPU, the
 * kernels.
 */
#include "cuda/context.h"
#include "cuda/kernels.h"
#include "cuda/kernels/image.h"
#include "tests/lib/check.h"
#include "tests/lib/gpu.h"
#include "tests/unit/cuda/kernels_fixture.h"

/* Device memory of a test, and a stream. */
static const struct device *device;
static CUstream stream;
static CUdeviceptr from_memory, to_memory;

#define MEMORY_SIZE (UINT64_C(16) << 20)

static bool says(const struct error *err, const char *part)
{
	return strstr(err->msg, part);
}

static void must(CUresult result)
{
	struct error err = ERROR_NULL;

	cr_assert(eq(int, driver_error(&err, result, "test"), 0), "%s",
		  err.msg);
}

static void open_device(void)
{
	const struct device *devices;
	struct error err = ERROR_NULL;
	uint32_t n;

	setenv("FAKECUDA_COUNT", "1", 1);
	if (!getenv("FSDP_LIBCUDA") && driver_load(&err) < 0)
		cr_skip_test("%s", err.msg);
	cr_assert(eq(int, device_list(&devices, &n, &err), 0), "%s", err.msg);
	device = &devices[0];
	cr_assert(eq(int, context_enter(device, &err), 0), "%s", err.msg);
	must(cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	must(cu.MemAlloc(&from_memory, MEMORY_SIZE));
	must(cu.MemAlloc(&to_memory, MEMORY_SIZE));
}

static void open_all(void)
{
	gpu_open();
	open_device();
}

TestSuite(kernels, .init = open_all, .fini = gpu_close, .timeout = 300);

static struct kernels_table *make_table(const struct kernels_case *launch)
{
	struct error err = ERROR_NULL;
	struct kernels_table *table;
	int r = kernels_table_new(device, launch->kind, launch->entries,
				  launch->n_entries, &table, &err);

	cr_assert(eq(int, r, 0), "%s", err.msg);
	return table;
}

/* The copy is in order with the launch: another copy to the device may still
 * run when it returns. */
static void put(const struct kernels_case *launch)
{
	cr_assert(launch->from_size <= MEMORY_SIZE &&
		  launch->to_size <= MEMORY_SIZE);
	must(cu.MemcpyHtoDAsync(from_memory, launch->from, launch->from_size,
				stream));
	must(cu.MemcpyHtoDAsync(to_memory, launch->to, launch->to_size,
				stream));
}

static void fetch(struct kernels_case *launch)
{
	must(cu.MemcpyDtoHAsync(launch->to, to_memory, launch->to_size,
				stream));
	must(cu.StreamSynchronize(stream));
}

static void launch_on_device(const struct kernels_case *launch,
			     const struct kernels_table *table)
{
	const struct kernels_launch call = {
		.table = table,
		.first = launch->first,
		.n_entries = launch->n,
		.from = from_memory,
		.to = to_memory,
		.factor = launch->factor,
		.is_added = launch->is_added,
	};
	struct error err = ERROR_NULL;

	cr_assert(eq(int, kernels_launch(&call, stream, &err), 0), "%s",
		  err.msg);
}

/* Launch the case on the device, and copy the result to `to`. */
static void run_case(struct kernels_case *launch)
{
	struct kernels_table *table = make_table(launch);

	put(launch);
	launch_on_device(launch, table);
	fetch(launch);
	kernels_table_free(table);
}

static void check_case(struct kernels_case *launch)
{
	uint8_t *want = case_expect(launch);
	uint64_t at;

	run_case(launch);
	at = case_compare(launch->to, want, launch->to_size);
	cr_assert(eq(u64, at, launch->to_size), "%s",
		  case_describe(launch, at));
	free(want);
}

static void check_kind(enum kernels_kind kind)
{
	static struct kernels_case launch;
	struct dice dice = {100 + (uint64_t)kind};

	for (int i = 0; i < 60; i++) {
		case_throw(&dice, kind, 8, &launch);
		check_case(&launch);
		case_deinit(&launch);
	}
}

/* --- whatever comes ------------------------------------------------------ */

Test(kernels, copy_in_casts_chunks)
{
	check_kind(KERNELS_COPY_IN);
}

Test(kernels, copy_out_assembles_parameters)
{
	check_kind(KERNELS_COPY_OUT);
}

Test(kernels, chunk_cat_pads_casts_and_scales)
{
	check_kind(KERNELS_CHUNK_CAT);
}

Test(kernels, grad_out_divides_casts_and_adds)
{
	check_kind(KERNELS_GRAD_OUT);
}

Test(kernels, every_16_bit_float_is_cast_as_the_host_casts_it)
{
	static struct kernels_case launch;
	static const uint32_t dtypes[] = {DTYPE_F16, DTYPE_BF16};
	uint16_t *bits;

	for (int i = 0; i < 8; i++) {
		launch = (struct kernels_case){
			.kind = KERNELS_GRAD_OUT,
			.n_entries = 1,
			.n = 1,
			.factor = 1,
			.from_size = 2 * 65536,
			.to_size = 8 * 65536,
		};
		launch.entries[0] = (struct kernels_entry){
			.from_dtype = dtypes[i % 2],
			.to_dtype = case_floats[i / 2],
			.numel = 65536,
			.padded_numel = 65536,
		};
		launch.from = case_alloc(launch.from_size);
		launch.to = case_alloc(launch.to_size);
		memset(launch.to, CANARY, launch.to_size);
		bits = (uint16_t *)launch.from;
		for (uint32_t k = 0; k < 65536; k++)
			bits[k] = (uint16_t)k;
		check_case(&launch);
		case_deinit(&launch);
	}
}

/* --- the reference's cases ----------------------------------------------- */

/* Two parameters of f32 over two ranks: A (3, 2) = 0..5 and B (4) = 10..13,
 * packed without gaps. */
#define CASE_47_ROW 6 /* elements of one rank on the wire */

static void make_case_47(enum kernels_kind kind, struct kernels_case *launch)
{
	bool is_cat = kind == KERNELS_CHUNK_CAT;

	*launch = (struct kernels_case){
		.kind = kind,
		.n_entries = 2,
		.n = 2,
		.factor = 1,
		.from_size = 12 * sizeof(float),
		.to_size = 12 * sizeof(float),
	};
	launch->entries[0] = (struct kernels_entry){
		.from_dtype = DTYPE_F32,
		.to_dtype = DTYPE_F32,
		.numel = 6,
		.padded_numel = 8, /* 4 rows */
		.n_ranks = 2,
		.stride = CASE_47_ROW * sizeof(float),
		.n_rows = 1,
		.part_numel = 4,
	};
	launch->entries[1] = launch->entries[0];
	launch->entries[1].from = (is_cat ? 6 : 4) * sizeof(float);
	launch->entries[1].to = (is_cat ? 4 : 8) * sizeof(float);
	launch->entries[1].numel = 4;
	launch->entries[1].padded_numel = 4;
	launch->entries[1].part_numel = 2;
	launch->from = case_alloc(launch->from_size);
	launch->to = case_alloc(launch->to_size);
	memset(launch->to, CANARY, launch->to_size);
}

static const float case_47_wire[] = {0, 1, 2, 3, 10, 11, 4, 5, 0, 0, 12, 13};

/* Case 47. */
Test(kernels, chunk_cat_gives_the_wire_of_the_reference)
{
	const float grads[] = {0, 1, 2, 3, 4, 5, 10, 11, 12, 13};
	static struct kernels_case launch;

	make_case_47(KERNELS_CHUNK_CAT, &launch);
	memcpy(launch.from, grads, sizeof(grads));
	run_case(&launch);
	cr_assert(zero(int,
		       memcmp(launch.to, case_47_wire, sizeof(case_47_wire))));
	case_deinit(&launch);
}

/* Case 49: the same wire, as an all-gather leaves it. */
Test(kernels, copy_out_restores_parameters_from_the_wire_of_the_reference)
{
	const float a[] = {0, 1, 2, 3, 4, 5, 0, 0}, b[] = {10, 11, 12, 13};
	static struct kernels_case launch;

	make_case_47(KERNELS_COPY_OUT, &launch);
	memcpy(launch.from, case_47_wire, sizeof(case_47_wire));
	run_case(&launch);
	cr_assert(zero(int, memcmp(launch.to, a, sizeof(a))));
	cr_assert(zero(int, memcmp(launch.to + sizeof(a), b, sizeof(b))));
	case_deinit(&launch);
}

/* Case 49 too: each rank sends rows of the wire. */
Test(kernels, copy_in_gives_the_rows_of_the_reference)
{
	/* Rank 1's chunks, with the stored padding. */
	const float a[] = {4, 5, 0, 0}, b[] = {12, 13};
	static struct kernels_case launch;

	make_case_47(KERNELS_COPY_IN, &launch);
	launch.entries[0].numel = launch.entries[0].padded_numel = 4;
	launch.entries[1].numel = launch.entries[1].padded_numel = 2;
	launch.entries[1].to = 4 * sizeof(float);
	memcpy(launch.from, a, sizeof(a));
	memcpy(launch.from + sizeof(a), b, sizeof(b));
	run_case(&launch);
	cr_assert(zero(int, memcmp(launch.to, case_47_wire + CASE_47_ROW,
				   CASE_47_ROW * sizeof(float))));
	case_deinit(&launch);
}

/* Case 51 in our form: three bf16 and two f32 of each of two ranks. The
 * reference packs them to 6 and 8 bytes and sees all as bytes; here each is
 * aligned and has its own dtype, in one launch. */
static void make_case_51(struct kernels_case *launch)
{
	const uint16_t a[] = {0x3f80, 0x4000, 0x4040, 0xbf80, 0xc000, 0xc040};
	const float b[] = {1.5f, 2.5f, 3.5f, 4.5f};

	*launch = (struct kernels_case){
		.kind = KERNELS_COPY_OUT,
		.n_entries = 2,
		.n = 2,
		.factor = 1,
		.from_size = 32,
		.to_size = 28,
	};
	launch->entries[0] = (struct kernels_entry){
		.from_dtype = DTYPE_BF16,
		.to_dtype = DTYPE_BF16,
		.numel = 6,
		.padded_numel = 6,
		.n_ranks = 2,
		.stride = 16,
		.n_rows = 1,
		.part_numel = 3,
	};
	launch->entries[1] = launch->entries[0];
	launch->entries[1].from_dtype = DTYPE_F32;
	launch->entries[1].to_dtype = DTYPE_F32;
	launch->entries[1].from = 8;
	launch->entries[1].to = 12;
	launch->entries[1].numel = launch->entries[1].padded_numel = 4;
	launch->entries[1].part_numel = 2;
	launch->from = case_alloc(launch->from_size);
	launch->to = case_alloc(launch->to_size);
	memset(launch->from, CANARY, launch->from_size);
	for (int rank = 0; rank < 2; rank++) {
		uint8_t *row = launch->from + rank * 16;

		memcpy(row, a + rank * 3, 3 * sizeof(*a));
		memcpy(row + 8, b + rank * 2, 2 * sizeof(*b));
	}
}

Test(kernels, one_launch_unpacks_a_bucket_of_mixed_dtypes)
{
	static struct kernels_case launch;
	const uint16_t a[] = {0x3f80, 0x4000, 0x4040, 0xbf80, 0xc000, 0xc040};
	const float b[] = {1.5f, 2.5f, 3.5f, 4.5f};

	make_case_51(&launch);
	run_case(&launch);
	cr_assert(zero(int, memcmp(launch.to, a, sizeof(a))));
	cr_assert(zero(int, memcmp(launch.to + 12, b, sizeof(b))));
	case_deinit(&launch);
}

/* Case 59, the casts: f32 that is reduced in bf16 is rounded before it is
 * scaled. */
Test(kernels, gradients_are_cast_before_they_are_scaled)
{
	static struct kernels_case launch;
	/* In bf16 it is 1 + 2^-6, a third of which is 0x3ead; a third of the
	 * f32 would be 0x3eae. */
	const float grad = 1 + 5 * 0x1p-8f;
	uint16_t bits;

	launch = (struct kernels_case){
		.kind = KERNELS_CHUNK_CAT,
		.n_entries = 1,
		.n = 1,
		.factor = 1.0 / 3,
		.from_size = sizeof(grad),
		.to_size = sizeof(bits),
	};
	launch.entries[0] = (struct kernels_entry){
		.from_dtype = DTYPE_F32,
		.to_dtype = DTYPE_BF16,
		.numel = 1,
		.padded_numel = 1,
		.n_ranks = 1,
		.n_rows = 1,
		.part_numel = 1,
	};
	launch.from = case_alloc(launch.from_size);
	launch.to = case_alloc(launch.to_size);
	memcpy(launch.from, &grad, sizeof(grad));
	run_case(&launch);
	memcpy(&bits, launch.to, sizeof(bits));
	cr_assert(eq(u16, bits, 0x3ead));
	case_deinit(&launch);
}

/* --- launches ------------------------------------------------------------ */

/* Make n entries of one f32 each, from one memory's begin to another's. */
static void make_singles(struct kernels_case *launch, uint32_t n)
{
	*launch = (struct kernels_case){
		.kind = KERNELS_GRAD_OUT,
		.n_entries = n,
		.n = n,
		.factor = 1,
		.from_size = n * sizeof(float),
		.to_size = n * sizeof(float),
	};
	launch->from = case_alloc(launch->from_size);
	launch->to = case_alloc(launch->to_size);
	memset(launch->to, CANARY, launch->to_size);
	for (uint32_t i = 0; i < n; i++) {
		const float value = (float)i;

		launch->entries[i] = (struct kernels_entry){
			.from = i * sizeof(float),
			.to = i * sizeof(float),
			.from_dtype = DTYPE_F32,
			.to_dtype = DTYPE_F32,
			.numel = 1,
			.padded_numel = 1,
		};
		memcpy(launch->from + i * sizeof(value), &value, sizeof(value));
	}
}

Test(kernels, a_thousand_small_entries_need_one_launch)
{
	static struct kernels_case launch;
	struct kernels_table *table;
	uint8_t *want;
	long n;

	make_singles(&launch, KERNELS_MAX_ENTRIES);
	want = case_expect(&launch);
	table = make_table(&launch);
	put(&launch);
	n = gpu_count(getpid(), "LaunchKernel");
	launch_on_device(&launch, table);
	if (is_fake())
		cr_assert(eq(long, gpu_count(getpid(), "LaunchKernel"), n + 1));
	fetch(&launch);
	cr_assert(zero(int, memcmp(launch.to, want, launch.to_size)));
	kernels_table_free(table);
	free(want);
	case_deinit(&launch);
}

Test(kernels, a_launch_of_empty_entries_launches_no_kernel)
{
	static struct kernels_case launch;
	struct kernels_table *table;
	long n;

	make_singles(&launch, 2);
	launch.entries[0].numel = launch.entries[0].padded_numel = 0;
	table = make_table(&launch);
	n = gpu_count(getpid(), "LaunchKernel");
	launch.n = 0;
	launch_on_device(&launch, table);
	launch.n = 1; /* no launch for this entry either, because it is empty */
	launch_on_device(&launch, table);
	if (is_fake())
		cr_assert(eq(long, gpu_count(getpid(), "LaunchKernel"), n));
	kernels_table_free(table);
	launch.n_entries = 0;
	kernels_table_free(make_table(&launch));
	kernels_table_free(NULL);
	case_deinit(&launch);
}

/* A driver loads a kernel at its first launch, and may then wait for all
 * streams. A stream may wait for something that this process does later. */
Test(kernels, creating_a_table_loads_its_kernels)
{
	static struct kernels_case launch;

	if (!is_fake())
		cr_skip_test("a driver does not count");
	make_singles(&launch, 1);
	kernels_table_free(make_table(&launch));
	/* One entry adds, and one does not. */
	cr_assert(eq(long, gpu_count(getpid(), "LaunchKernel"), 2));
	case_deinit(&launch);
}

Test(kernels, entries_may_have_absolute_addresses)
{
	static struct kernels_case launch;
	struct error err = ERROR_NULL;
	struct kernels_table *table;
	uint8_t *want;

	make_singles(&launch, 3);
	want = case_expect(&launch);
	put(&launch);
	for (uint32_t i = 0; i < launch.n_entries; i++) {
		launch.entries[i].from += from_memory;
		launch.entries[i].to += to_memory;
	}
	table = make_table(&launch);
	const struct kernels_launch call = {table, 0, 3, 0, 0, 1, false};

	cr_assert(eq(int, kernels_launch(&call, stream, &err), 0), "%s",
		  err.msg);
	fetch(&launch);
	cr_assert(zero(int, memcmp(launch.to, want, launch.to_size)));
	kernels_table_free(table);
	free(want);
	case_deinit(&launch);
}

/* If the launch waited, it would never return, because the test writes the
 * value only afterwards. */
Test(kernels, a_launch_does_not_wait_for_the_stream)
{
	static struct kernels_case launch;
	CUdeviceptr gate = to_memory + MEMORY_SIZE / 2;
	struct kernels_table *table;
	CUstream other;

	if (!device->has_wait_value)
		cr_skip_test("the device has no stream memory operations");
	make_singles(&launch, 5);
	table = make_table(&launch);
	put(&launch);
	must(cu.MemsetD8Async(gate, 0, 8, stream));
	must(cu.StreamSynchronize(stream));
	must(cu.StreamCreate(&other, CU_STREAM_NON_BLOCKING));
	must(cu.StreamWaitValue64(stream, gate, 1, CU_STREAM_WAIT_VALUE_GEQ));
	launch_on_device(&launch, table);
	cr_assert(eq(int, cu.StreamQuery(stream), CUDA_ERROR_NOT_READY));
	must(cu.StreamWriteValue64(other, gate, 1, 0));
	must(cu.StreamSynchronize(stream));
	kernels_table_free(table);
	case_deinit(&launch);
}

/* --- refusals ------------------------------------------------------------ */

/* test_kernels_row.c tests invalid entries. */
Test(kernels, the_error_names_an_invalid_entry)
{
	const struct kernels_entry entries[] = {
		{.from_dtype = DTYPE_U8, .to_dtype = DTYPE_U8},
		{.from_dtype = DTYPE_U8, .to_dtype = DTYPE_F16},
	};
	struct error err = ERROR_NULL;
	struct kernels_table *table;
	int r = kernels_table_new(device, KERNELS_COPY_IN, entries, 2, &table,
				  &err);

	cr_assert(eq(int, r, -EINVAL));
	cr_assert(says(&err, "entry 1: u8 is not cast to f16"), "%s", err.msg);
}

Test(kernels, a_table_of_more_entries_than_a_plan_is_refused)
{
	static const struct kernels_entry entries[KERNELS_MAX_ENTRIES + 1];
	struct error err = ERROR_NULL;
	struct kernels_table *table;
	int r = kernels_table_new(device, KERNELS_COPY_IN, entries,
				  KERNELS_MAX_ENTRIES + 1, &table, &err);

	cr_assert(eq(int, r, -EINVAL));
	cr_assert(says(&err, "1025 entries"), "%s", err.msg);
}

static void expect_no_launch(struct kernels_launch call, CUstream on,
			     const char *part)
{
	struct error err = ERROR_NULL;

	cr_assert(eq(int, kernels_launch(&call, on, &err), -EINVAL));
	cr_assert(says(&err, part), "%s", err.msg);
}

Test(kernels, invalid_launches_are_refused)
{
	static struct kernels_case launch;
	struct kernels_table *table;
	struct kernels_launch call = {
		.n_entries = 2,
		.from = from_memory,
		.to = to_memory,
		.factor = 1,
	};

	make_singles(&launch, 2);
	call.table = table = make_table(&launch);
	expect_no_launch(call, NULL, "the stream for kernel");
	call.first = 1;
	expect_no_launch(call, stream, "2 entries from entry 1 on");
	call.first = UINT32_MAX;
	expect_no_launch(call, stream, "of a table of 2 entries");
	call.first = 0;
	call.to += 8;
	expect_no_launch(call, stream, "not aligned to 16");
	call.to -= 8;
	call.factor = NAN;
	expect_no_launch(call, stream, "the factor nan");
	call.factor = 0;
	expect_no_launch(call, stream, "the factor 0");
	call.factor = INFINITY;
	expect_no_launch(call, stream, "the factor inf");
	kernels_table_free(table);
	case_deinit(&launch);
}

Test(kernels, factors_are_refused_for_copies_and_integers)
{
	static struct kernels_case launch;
	struct kernels_table *table;
	struct kernels_launch call = {
		.n_entries = 2,
		.from = from_memory,
		.to = to_memory,
		.factor = 2.5,
	};

	make_singles(&launch, 2);
	launch.entries[1].from_dtype = launch.entries[1].to_dtype = DTYPE_I32;
	call.table = table = make_table(&launch);
	expect_no_launch(call, stream, "the factor 2.5 for i32");
	kernels_table_free(table);
	launch.kind = KERNELS_COPY_IN;
	call.table = table = make_table(&launch);
	expect_no_launch(call, stream, "the factor 2.5 for kernel");
	call.factor = 1;
	call.is_added = true;
	expect_no_launch(call, stream, "fsdp_copy_in cannot accumulate");
	kernels_table_free(table);
	case_deinit(&launch);
}

/* --- failures ------------------------------------------------------------ */

/* Each test is a process of its own, so it can set the faults before its first
 * call of the driver. */
static void open_failing(const char *faults)
{
	setenv("FAKECUDA_FAIL", faults, 1);
	open_device();
	if (!is_fake())
		cr_skip_test("a driver does not fail when it is told to");
}

TestSuite(kernels_failing, .init = gpu_open, .fini = gpu_close, .timeout = 300);

/* Each call that is needed to make a table fails once. The numbers of the calls
 * include those of open_device() and of earlier attempts. */
Test(kernels_failing, a_table_that_cannot_be_created_leaves_no_memory)
{
	static const char faults[] = "MemAlloc:3:2,StreamCreate:2:2,"
				     "MemcpyHtoDAsync:1:2,MemcpyHtoDAsync:3:2,"
				     "KernelGetFunction:1:2,LaunchKernel:1:2,"
				     "KernelGetFunction:4:2,"
				     "StreamSynchronize:6:2";
	static struct kernels_case launch;

	open_failing(faults);
	make_singles(&launch, 2);
	for (int i = 0; i < 8; i++) {
		struct error err = ERROR_NULL;
		struct kernels_table *table = NULL;

		cr_assert(eq(int,
			     kernels_table_new(device, launch.kind,
					       launch.entries, 2, &table, &err),
			     -ENOMEM));
		cr_assert(says(&err, "a table of 2 entries for kernel "
				     "fsdp_grad_out"),
			  "%s", err.msg);
		cr_assert(table == NULL);
	}
	kernels_table_free(make_table(&launch));
	/* One of the table's calls failed. */
	cr_assert(eq(long, gpu_count(getpid(), "MemFree"),
		     gpu_count(getpid(), "MemAlloc") - 2 - 1));
	cr_assert(eq(long, gpu_count(getpid(), "StreamDestroy"),
		     gpu_count(getpid(), "StreamCreate") - 1 - 1));
	case_deinit(&launch);
}

Test(kernels_failing, a_launch_that_fails_names_the_kernel)
{
	static struct kernels_case launch;
	struct kernels_launch call = {.n_entries = 2, .factor = 1};
	struct error err = ERROR_NULL;
	struct kernels_table *table;

	open_failing("LaunchKernel:3:719");
	make_singles(&launch, 2);
	call.table = table = make_table(&launch);
	call.from = from_memory;
	call.to = to_memory;
	call.is_added = true;
	cr_assert(eq(int, kernels_launch(&call, stream, &err), -EIO));
	cr_assert(says(&err, "launch kernel fsdp_grad_add"), "%s", err.msg);
	kernels_table_free(table);
	case_deinit(&launch);
}

static void expect_no_kernels(int code, const char *part)
{
	struct error err = ERROR_NULL;

	/* All callers get the result of the first check. */
	cr_assert(eq(int, kernels_load(NULL), code));
	cr_assert(eq(int, kernels_load(&err), code));
	cr_assert(says(&err, part), "%s", err.msg);
}

Test(kernels_failing, a_device_or_driver_that_is_too_old_is_refused)
{
	open_failing("LibraryLoadData:1:209");
	expect_no_kernels(-ENOSYS, "compute capability 8.0");
}

Test(kernels_failing, an_image_that_cannot_be_loaded_is_an_error)
{
	open_failing("LibraryLoadData:1:2");
	expect_no_kernels(-ENOMEM, "load the kernels");
}

Test(kernels_failing, the_error_names_a_missing_kernel)
{
	open_failing("LibraryGetKernel:3:500");
	expect_no_kernels(-ENOENT, "find kernel fsdp_chunk_cat");
}

/* nvcc makes such an image; another test is linked as if there were none. */
Test(kernels_failing, the_image_is_a_fat_binary)
{
	static const unsigned char magic[] = {0x50, 0xed, 0x55, 0xba};

	if (!kernels_image_toolkit)
		cr_skip_test("nvcc was not found when this was built");
	cr_assert(zero(int, memcmp(kernels_image, magic, sizeof(magic))));
	cr_expect(ge(int, kernels_image_toolkit, 12000));
}

/* The names of the kernels are readable in an image that is not compressed. */
Test(kernels_failing, the_image_is_not_compressed)
{
	static const char name[] = "fsdp_grad_out";
	uint64_t size;

	if (!kernels_image_toolkit)
		cr_skip_test("nvcc was not found when this was built");
	/* the part after the header that contains it */
	memcpy(&size, kernels_image + 8, sizeof(size));
	cr_assert(ne(ptr, memmem(kernels_image, 16 + size, name, strlen(name)),
		     NULL));
}
