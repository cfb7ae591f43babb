#include "tests/lib/gpu.h"
#include <dirent.h>

void gpu_open(void)
{
	char dir[] = "/dev/shm/fsdp-gpu-XXXXXX";

	cr_assert(mkdtemp(dir) != NULL, "no folder for the devices");
	setenv("FAKECUDA_DIR", dir, 1);
}

void gpu_close(void)
{
	const char *path = getenv("FAKECUDA_DIR");
	DIR *dir = path ? opendir(path) : NULL;

	if (!path)
		return;
	for (struct dirent *entry; dir && (entry = readdir(dir));)
		(void)unlinkat(dirfd(dir), entry->d_name, 0);
	if (dir)
		closedir(dir);
	(void)rmdir(path);
}

bool is_fake(void)
{
	return getenv("FSDP_LIBCUDA");
}

void gpu_skip(const char *why)
{
	gpu_close();
	cr_skip_test("%s", why);
}

void need_fake(const char *why)
{
	char text[128];

	if (is_fake())
		return;
	(void)snprintf(text, sizeof(text), "needs the fake driver: %s", why);
	gpu_skip(text);
}

void need_gpus(uint32_t n, uint32_t wanted)
{
	char text[32];

	(void)snprintf(text, sizeof(text), "needs %u GPUs", wanted);
	if (n < wanted && !is_fake())
		gpu_skip(text);
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
