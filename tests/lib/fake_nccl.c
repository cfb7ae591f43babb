#include "tests/lib/fake_nccl.h"
#include "tests/lib/chaos.h"
#include <dlfcn.h>
#include <stdlib.h>

void count_registrations(unsigned int *ret_made, unsigned int *ret_left)
{
	void *library = dlopen(getenv("FSDP_LIBNCCL"), RTLD_NOW | RTLD_NOLOAD);
	void (*count)(unsigned int *made, unsigned int *left);

	must(library != NULL);
	*(void **)&count = dlsym(library, "fake_nccl_registrations");
	must(count != NULL);
	count(ret_made, ret_left);
	dlclose(library);
}

int stream_priority(CUstream stream)
{
	void *driver = dlopen(getenv("FSDP_LIBCUDA"), RTLD_NOW | RTLD_NOLOAD);
	int (*ask)(CUstream stream);

	must(driver != NULL);
	*(void **)&ask = dlsym(driver, "fake_stream_priority");
	must(ask != NULL);
	dlclose(driver);
	return ask(stream);
}
