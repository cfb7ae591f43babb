/*
 * dl_iterate_phdr() for programs under AddressSanitizer, which lets
 * LeakSanitizer look for pointers in the variables of all libraries but its
 * own.
 *
 * Those are 5.6 MB, mostly a table of stacks that was never written. Reading it
 * costs 960 page faults at the end of each process, and nothing in it is a
 * pointer to our memory.
 *
 * LeakSanitizer stops all threads in a function that it passes to
 * dl_iterate_phdr(), and then calls it again for the variables. Nobody else
 * makes such a nested call. What looks for names of functions is not nested,
 * and so finds the library (unless two threads look at once; then a report may
 * lack names).
 */
#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <string.h>

typedef int module_fn(struct dl_phdr_info *info, size_t size, void *data);

__attribute__((visibility("default"))) int dl_iterate_phdr(module_fn *fn,
							   void *data);

struct visit {
	module_fn *fn;
	void *data;
};

static int visit_others(struct dl_phdr_info *info, size_t size, void *data)
{
	const struct visit *visit = data;

	if (strstr(info->dlpi_name, "/libasan.so"))
		return 0;
	return visit->fn(info, size, visit->data);
}

int dl_iterate_phdr(module_fn *fn, void *data)
{
	static int (*_Atomic found)(module_fn * fn, void *data);
	static atomic_int depth;
	int (*next)(module_fn *, void *) = atomic_load(&found);
	struct visit visit = {fn, data};
	int r;

	if (!next) {
		next = (int (*)(module_fn *, void *))dlsym(RTLD_NEXT,
							   "dl_iterate_phdr");
		atomic_store(&found, next);
	}
	if (atomic_fetch_add(&depth, 1) == 0)
		r = next(fn, data);
	else
		r = next(visit_others, &visit);
	atomic_fetch_sub(&depth, 1);
	return r;
}
