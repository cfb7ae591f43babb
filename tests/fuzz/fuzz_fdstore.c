/*
 * Reads the names of inherited descriptors (LISTEN_FDNAMES), which a service
 * manager passes unchecked. Each descriptor is taken by its own name, once, and
 * the others are closed.
 *
 * The first byte is the number of descriptors; the rest are the names.
 */
#include "broker/base/fdstore.h"
#include "proto/error.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FIRST 3
#define MAX_N 16

/* Keeps the variables. setenv() would keep all values of all inputs. */
static void set(char *variable)
{
	if (putenv(variable) != 0)
		abort();
}

static void pass_descriptors(int n, const uint8_t *names, size_t size)
{
	static char count[32], process[32], all_names[1024];

	(void)snprintf(count, sizeof(count), "LISTEN_FDS=%d", n);
	(void)snprintf(process, sizeof(process), "LISTEN_PID=%ld",
		       (long)getpid());
	(void)snprintf(all_names, sizeof(all_names), "LISTEN_FDNAMES=%.*s",
		       (int)size, (const char *)names);
	set(count);
	set(process);
	set(all_names);
	for (int i = 0; i < n; i++) {
		int fd = open("/dev/null", O_RDONLY);

		/* The fuzzer itself has no descriptor above 2. */
		if (fd < 0 || (fd != FIRST + i && dup2(fd, FIRST + i) < 0))
			abort();
		if (fd != FIRST + i)
			close(fd);
	}
}

static int count_open(int n)
{
	int n_open = 0;

	for (int i = 0; i < n; i++)
		n_open += fcntl(FIRST + i, F_GETFD) >= 0;
	return n_open;
}

static int take_all(struct fdstore *store, const char *name)
{
	int n = 0, fd;

	while ((fd = fdstore_take(store, name)) >= 0) {
		if (fcntl(fd, F_GETFD) < 0)
			abort();
		close(fd);
		n++;
	}
	return n;
}

static void take_and_close(struct fdstore *store, int n)
{
	static const char *const names[] = {"catalog", "table",  "c1", "t1",
					    "listen",  "worker", ""};
	int n_taken = 0;

	if (store->n_inherited != (uint32_t)n || store->n_stored > (uint32_t)n)
		abort();
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		n_taken += take_all(store, names[i]);
	if (count_open(n) != n - n_taken)
		abort();
	fdstore_close(store);
	if (count_open(n) != 0)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct error err = ERROR_NULL;
	struct fdstore store;
	int n, r;

	if (size < 1)
		return 0;
	n = data[0] % MAX_N;
	pass_descriptors(n, data + 1, size - 1);
	r = fdstore_open(&store, &err);
	if (r == 0) {
		take_and_close(&store, n);
		return 0;
	}
	if (r != err.code || !err.msg[0])
		abort();
	for (int i = 0; i < n; i++)
		close(FIRST + i);
	return 0;
}
