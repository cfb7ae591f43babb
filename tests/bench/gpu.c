#include "gpu.h"
#include "child.h"
#include "cuda/context.h"
#include "proto/error.h"
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- devices ------------------------------------------------------------- */

static int find_one(const struct fsdp_device_entry *entry, void *data)
{
	struct gpu *gpu = data;

	if (gpu->n_devices++ > 0)
		return 0;
	gpu->device = entry->device;
	gpu->memory = entry->size;
	gpu->is_fake = entry->is_fake;
	snprintf(gpu->name, sizeof(gpu->name), "%s", entry->name);
	return 0;
}

static void find(int sock_fd, void *data)
{
	struct gpu *gpu = data;

	gpu->error = fsdp_devices(find_one, gpu);
	if (gpu->error < 0)
		snprintf(gpu->sentence, sizeof(gpu->sentence), "%s",
			 fsdp_error());
	message_send(sock_fd, gpu, sizeof(*gpu));
}

void gpu_find(struct gpu *ret, const struct bench *bench)
{
	struct child child;

	*ret = (struct gpu){.bench = bench};
	child_start(&child, bench->client_cpu, find, ret);
	message_receive(child.sock_fd, ret, sizeof(*ret));
	child_wait(&child);
}

void gpu_check(int r, const struct error *err)
{
	if (r < 0)
		die("%s", err->msg);
}

void gpu_must(CUresult result, const char *what)
{
	struct error err = ERROR_NULL;

	if (result != CUDA_SUCCESS)
		gpu_check(driver_error(&err, result, "%s", what), &err);
}

const struct device *gpu_enter(uint32_t i)
{
	struct error err = ERROR_NULL;
	const struct device *devices;
	uint32_t n;

	gpu_check(device_list(&devices, &n, &err), &err);
	gpu_check(context_enter(&devices[i % n], &err), &err);
	return &devices[i % n];
}

CUstream gpu_stream(void)
{
	CUstream stream;

	gpu_must(cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING),
		 "make a stream");
	return stream;
}

/* --- lines --------------------------------------------------------------- */

const char *gpu_format_size(uint64_t size, char ret[32])
{
	if (size < UINT64_C(1) << 20)
		snprintf(ret, 32, "%u KiB", (unsigned)(size >> 10));
	else
		snprintf(ret, 32, "%u MiB", (unsigned)(size >> 20));
	return ret;
}

static double bandwidth(const struct gpu_line *line, double us)
{
	return line->size > 0 ? (double)line->size / us / 1000 : NAN;
}

static void print_json(const struct gpu *gpu, const struct gpu_line *line)
{
	const struct result *result = &line->result;
	double algbw = bandwidth(line, result->median);
	double floor = bandwidth(line, result->floor);

	printf("{\"name\": \"%s\", \"variant\": \"%s\", \"unit\": \"%s\", "
	       "\"n\": %zu, \"size\": %llu, \"is_fake\": %s",
	       line->name, line->variant, line->unit, result->n,
	       (unsigned long long)line->size, gpu->is_fake ? "true" : "false");
	print_number("median", result->median);
	print_number("p99", result->p99);
	print_number("floor", result->floor);
	print_number("ratio", result->ratio);
	print_number("budget", NAN);
	print_number("algbw", algbw);
	print_number("busbw", algbw * line->bus_factor);
	print_number("floor_algbw", floor);
	print_number("floor_busbw", floor * line->bus_factor);
	printf("}\n");
}

/* Print "-" if there is no number. */
static void print_cell(int width, double value)
{
	if (isfinite(value))
		printf(" %*.4g", width, value);
	else
		printf(" %*s", width, "-");
}

static void print_text(const struct gpu_line *line)
{
	const struct result *result = &line->result;
	double algbw = bandwidth(line, result->median);
	double floor = bandwidth(line, result->floor);

	printf("%-20s %-24s", line->name, line->variant);
	print_cell(9, result->median);
	print_cell(9, result->p99);
	print_cell(9, result->floor);
	printf(" %-4s", line->unit);
	print_cell(7, result->ratio);
	print_cell(7, algbw);
	print_cell(7, algbw * line->bus_factor);
	print_cell(7, floor);
	print_cell(7, floor * line->bus_factor);
	printf("\n");
}

void gpu_print(const struct gpu *gpu, const struct gpu_line *line)
{
	if (gpu->bench->is_json)
		print_json(gpu, line);
	else
		print_text(line);
	fflush(stdout);
}

void gpu_leave_out(const char *name, const char *why)
{
	fprintf(stderr, "fsdp-bench: %s: left out: %s\n", name, why);
}

/* --- the table ----------------------------------------------------------- */

static const struct section {
	const char *name;
	gpu_fn *run;
} sections[] = {
	{"attach_1000", gpu_attach},
	{"import_and_map", gpu_import},
	{"publish_to_consume", gpu_order},
	{"kernels", gpu_kernels},
	{"collectives", gpu_collectives},
	{"gemm", gpu_gemm},
	{"torch", gpu_torch},
};
#define N_SECTIONS (sizeof(sections) / sizeof(*sections))

static const char head[] =
	"Times in us; floor: what the driver or NCCL alone needs for the same, "
	"measured in\n"
	"turns in the same run. GB/s as in nccl-tests: algbw = size / time, "
	"busbw = algbw *\n"
	"(n - 1) / n; of kernels: bytes read and written / time. "
	"Of *_by_*: the floor is the\n"
	"same alone.\n\n";

static void print_head(const struct gpu *gpu)
{
	printf("%s, %llu MiB, %u of them\n", gpu->name,
	       (unsigned long long)(gpu->memory >> 20), gpu->n_devices);
	fputs(head, stdout);
	printf("%-20s %-24s %9s %9s %9s %-4s %7s %7s %7s %7s %7s\n", "row",
	       "variant", "median", "p99", "floor", "unit", "ratio", "algbw",
	       "busbw", "floor a", "floor b");
	fflush(stdout);
}

static bool run_section(const struct section *section, const struct gpu *gpu)
{
	int status;
	pid_t pid;

	fflush(stdout);
	pid = sys(fork(), "fork");
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		section->run(gpu);
		fflush(stdout);
		_exit(0);
	}
	sys(waitpid(pid, &status, 0), "wait for a section");
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return true;
	fprintf(stderr, "fsdp-bench: gpu: %s was not measured\n",
		section->name);
	return false;
}

static bool is_wanted(const struct section *section, char **names)
{
	if (!*names)
		return true;
	while (*names && strcmp(*names, section->name) != 0)
		names++;
	return *names;
}

static bool is_section(const char *name)
{
	size_t i = 0;

	while (i < N_SECTIONS && strcmp(name, sections[i].name) != 0)
		i++;
	return i < N_SECTIONS;
}

const char *gpu_find_unknown(char **names)
{
	while (*names && is_section(*names))
		names++;
	return *names;
}

void gpu(const struct bench *bench, struct result *ret)
{
	unsigned n_failed = 0;
	struct gpu found;

	gpu_find(&found, bench);
	gpu_check(found.error, &(struct error){.code = found.error});
	if (found.is_fake)
		fputs("fsdp-bench: A FAKE plays the device: THESE "
		      "FIGURES MEAN NOTHING\n",
		      stderr);
	if (!bench->is_json)
		print_head(&found);
	for (size_t i = 0; i < N_SECTIONS; i++)
		if (is_wanted(&sections[i], bench->parts))
			n_failed += !run_section(&sections[i], &found);
	if (n_failed > 0)
		die("gpu: %u sections were not measured", n_failed);
	*ret = (struct result){0};
}
