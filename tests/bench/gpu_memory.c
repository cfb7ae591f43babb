/*
 * Rows gpu_attach_1000 and gpu_import: a process that has its context attaches,
 * by one request of a new connection, to a bundle that another process made.
 * The first has 1,000 members, the second has one in a chunk of each size. The
 * floor is to import and map a chunk of as many bytes, by vmm_map().
 */
#include "child.h"
#include "cuda/vmm.h"
#include "daemon.h"
#include "gpu.h"
#include "proto/error.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MIB       (UINT64_C(1) << 20)
#define N_MEMBERS 1000
/* This is more than a device's alignment of members. */
#define SMALL_SIZE 4096

struct model {
	const struct gpu *gpu;
	const char *socket;
	size_t n;
	uint64_t size; /* of each */
};

static void commit(struct fsdp_client *client, const struct model *model)
{
	const struct fsdp_bundle_options options = {
		.access = {.gid = FSDP_GID_DEFAULT},
		.size_hint = model->n * model->size,
		.device = model->gpu->device,
	};
	const struct fsdp_spec spec = {FSDP_U8, 1, {(int64_t)model->size}};
	struct fsdp_bundle *bundle;
	struct fsdp_tensor *tensor;
	char text[NAME_SIZE];
	const char *name = text;

	must(fsdp_bundle_begin(client, "model/", &options, &bundle),
	     "begin a bundle");
	for (size_t i = 0; i < model->n; i++) {
		name_format(text, "model", i);
		must(fsdp_bundle_alloc(bundle, &name, &spec, 1, &tensor),
		     "alloc a member");
		fsdp_free(tensor);
	}
	must(fsdp_bundle_commit(bundle, NULL), "commit a bundle");
}

static void produce(int sock_fd, void *data)
{
	const struct model *model = data;
	struct fsdp_client *client = client_open(model->socket);
	char byte = 0;

	commit(client, model);
	message_send(sock_fd, &byte, 1);
	message_receive(sock_fd, &byte, 1);
	fsdp_close(client);
}

static double time_floor(const struct device *device, int fd, uint64_t size)
{
	struct vmm_mapping mapping;
	struct error err = ERROR_NULL;
	uint64_t start = now_ns(), end;

	gpu_check(vmm_map(device, fd, size, false, &mapping, &err), &err);
	end = now_ns();
	vmm_unmap(&mapping);
	return (double)(end - start);
}

static double time_ours(const struct model *model)
{
	struct fsdp_client *client = client_open(model->socket);
	struct fsdp_tensor **tensors;
	uint64_t start, end;
	size_t n;

	start = now_ns();
	must(fsdp_bundle_get(client, "model/", NULL, &tensors, &n),
	     "get a bundle");
	end = now_ns();
	if (n != model->n || (size_t)fsdp_data(tensors[0]) == 0)
		die("a bundle has %zu members of %zu", n, model->n);
	for (size_t i = 0; i < n; i++)
		fsdp_free(tensors[i]);
	free(tensors);
	fsdp_close(client);
	return (double)(end - start);
}

static void run_pairs(const struct model *model, struct result *ret)
{
	const struct device *device = gpu_enter(0);
	uint64_t size = vmm_round(device, model->n * model->size);
	unsigned n_pairs = model->gpu->bench->n_pairs;
	struct pairs pairs = PAIRS_NULL;
	struct error err = ERROR_NULL;
	int fd;

	gpu_check(vmm_create(device, size, &fd, &err), &err);
	time_floor(device, fd, size);
	time_ours(model);
	for (unsigned i = 0; i < n_pairs; i++) {
		samples_add(&pairs.floor, time_floor(device, fd, size));
		samples_add(&pairs.ours, time_ours(model));
		pairs_close(&pairs);
	}
	close(fd);
	pairs_result(&pairs, 1000, ret);
	pairs_deinit(&pairs);
}

/* This runs in the section's own process, which loads the driver only
 * afterwards. */
static void run(const struct gpu *gpu, const char *name, size_t n,
		uint64_t size)
{
	struct model model = {.gpu = gpu, .n = n, .size = size};
	struct gpu_line line = {.name = name, .unit = "us"};
	char text[32], variant[64], byte = 0;
	struct daemon daemon;
	struct child child;

	daemon_start(&daemon, gpu->bench, &(struct daemon_options){0});
	model.socket = daemon.socket;
	child_start(&child, gpu->bench->second_cpu, produce, &model);
	message_receive(child.sock_fd, &byte, 1);
	run_pairs(&model, &line.result);
	message_send(child.sock_fd, &byte, 1);
	child_wait(&child);
	daemon_stop(&daemon);
	snprintf(variant, sizeof(variant), "%zu of %s", n,
		 gpu_format_size(size, text));
	line.variant = variant;
	gpu_print(gpu, &line);
}

void gpu_attach(const struct gpu *gpu)
{
	bool is_small = gpu->is_fake || gpu->bench->is_quick ||
			gpu->memory < 8 * N_MEMBERS * MIB;

	run(gpu, "gpu_attach_1000", N_MEMBERS, is_small ? SMALL_SIZE : MIB);
}

struct import {
	const struct gpu *gpu;
	uint64_t size;
};

static void import_one(int sock_fd, void *data)
{
	const struct import *import = data;

	(void)sock_fd;
	run(import->gpu, "gpu_import", 1, import->size);
}

/* Each size forks again, and so needs a process without the driver. */
void gpu_import(const struct gpu *gpu)
{
	static const uint64_t sizes[] = {2 * MIB, 64 * MIB, 1024 * MIB};
	struct child child;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		struct import import = {gpu, sizes[i]};

		/* Ours and the floor's exist at the same time. */
		if (sizes[i] > gpu->memory / 4 ||
		    (gpu->is_fake && sizes[i] > 64 * MIB)) {
			gpu_leave_out("gpu_import of 1 GiB", "too little room");
			continue;
		}
		child_start(&child, gpu->bench->client_cpu, import_one,
			    &import);
		child_wait(&child);
	}
}
