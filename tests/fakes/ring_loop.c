/*
 * For LD_PRELOAD: a libuv that batches its calls by io_uring if it can, as
 * versions since 1.45 do. It asks for a ring first, and prints whether the
 * kernel refused it.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef int uv_loop_init_fn(void *loop);

__attribute__((visibility("default"))) uv_loop_init_fn uv_loop_init;

int uv_loop_init(void *loop)
{
	uv_loop_init_fn *next;

	*(void **)&next = dlsym(RTLD_NEXT, "uv_loop_init");
	/* Without parameters no ring is made. */
	(void)syscall(SYS_io_uring_setup, 1, NULL);
	fprintf(stderr, "the loop's ring: %s\n", strerror(errno));
	return next(loop);
}
