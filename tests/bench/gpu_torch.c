/* Rows torch_*: the results of torch_peer.py, if there is PyTorch with CUDA. */
#include "gpu.h"
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define NO_TORCH 77 /* exit status of torch_peer.py */

static void print_row(const struct gpu *gpu, const char *text)
{
	struct gpu_line line = {.unit = "us"};
	struct result *result = &line.result;
	char name[32], variant[64];
	unsigned long long size;

	if (sscanf(text, "%31[^\t]\t%63[^\t]\t%lf\t%lf\t%zu\t%llu\t%lf", name,
		   variant, &result->median, &result->p99, &result->n, &size,
		   &line.bus_factor) != 7)
		die("%s: not a row: %s", "torch_peer.py", text);
	line.name = name;
	line.variant = variant;
	line.size = size;
	result->floor = NAN;
	result->ratio = NAN;
	gpu_print(gpu, &line);
}

static FILE *start(const struct gpu *gpu, pid_t *ret_pid)
{
	static const char *const all[] = {"1048576", "4194304", "16777216",
					  "67108864", "268435456"};
	bool is_quick = gpu->bench->is_quick;
	char path[PATH_MAX];
	int ends[2];

	sys(pipe(ends), "pipe");
	*ret_pid = sys(fork(), "fork");
	if (*ret_pid == 0) {
		unpin(gpu->bench);
		dup2(ends[1], STDOUT_FILENO);
		close(ends[0]);
		close(ends[1]);
		setenv("FSDP_BENCH_DIR", gpu->bench->dir, 1);
		bench_beside("torch_peer.py", path);
		if (is_quick)
			execlp("python3", "python3", path, all[1], all[3],
			       (char *)NULL);
		else
			execlp("python3", "python3", path, all[0], all[1],
			       all[2], all[3], all[4], (char *)NULL);
		_exit(NO_TORCH);
	}
	close(ends[1]);
	return fdopen(ends[0], "r");
}

void gpu_torch(const struct gpu *gpu)
{
	char text[256];
	int status;
	pid_t pid;
	FILE *file;

	if (gpu->is_fake) {
		gpu_leave_out("torch", "PyTorch cannot use a fake");
		return;
	}
	file = start(gpu, &pid);
	while (file && fgets(text, sizeof(text), file))
		print_row(gpu, text);
	sys(waitpid(pid, &status, 0), "wait for PyTorch");
	if (WIFEXITED(status) && WEXITSTATUS(status) == NO_TORCH)
		gpu_leave_out("torch", "no PyTorch with CUDA here");
	else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		die("torch_peer.py failed (wait status %#x)", status);
}
