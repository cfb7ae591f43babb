#include "tests/lib/gpu.h"
#include <dirent.h>

static char folder[32];
static pid_t opener;

/* A test that is skipped or fails ends without its teardown. */
static void close_at_exit(void)
{
	if (getpid() == opener)
		gpu_close();
}

void gpu_open(void)
{
	strcpy(folder, "/dev/shm/fsdp-gpu-XXXXXX");
	cr_assert(mkdtemp(folder) != NULL, "no folder for the devices");
	setenv("FAKECUDA_DIR", folder, 1);
	if (opener != getpid())
		(void)atexit(close_at_exit);
	opener = getpid();
}

void gpu_close(void)
{
	DIR *dir = opendir(folder);

	for (struct dirent *entry; dir && (entry = readdir(dir));)
		(void)unlinkat(dirfd(dir), entry->d_name, 0);
	if (dir)
		closedir(dir);
	(void)rmdir(folder);
}

bool is_fake(void)
{
	return getenv("FSDP_LIBCUDA");
}

void need_fake(const char *why)
{
	if (!is_fake())
		cr_skip_test("needs the fake driver: %s", why);
}

void need_gpus(uint32_t n, uint32_t wanted)
{
	if (n < wanted && !is_fake())
		cr_skip_test("needs %u GPUs", wanted);
	cr_assert(n >= wanted, "%u GPUs of %u", n, wanted);
}

long gpu_count(pid_t pid, const char *what)
{
	char path[64], line[128], name[64];
	long n, found = -1;
	FILE *file;

	(void)snprintf(path, sizeof(path), "%s/calls.%d",
		       getenv("FAKECUDA_DIR"), (int)pid);
	file = fopen(path, "re");
	while (file && found < 0 && fgets(line, sizeof(line), file))
		if (sscanf(line, "%63s %ld", name, &n) == 2 &&
		    strcmp(name, what) == 0)
			found = n;
	if (file)
		(void)fclose(file);
	return found;
}

bool gpu_is_count(pid_t pid, const char *function, long n)
{
	long now = gpu_count(pid, function);

	return now < 0 || now == n;
}
