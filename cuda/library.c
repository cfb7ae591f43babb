/* Opening libraries, and looking up their functions. */
#include "cuda/library.h"
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool library_open(struct library *library, const char *variable,
		  const char *name)
{
	/* The user of a set-uid program must not choose its code. */
	const char *path = secure_getenv(variable);
	struct link_map *map;

	library->handle =
		dlopen(path && *path ? path : name, RTLD_NOW | RTLD_LOCAL);
	if (!library->handle)
		return false;
	if (dlinfo(library->handle, RTLD_DI_LINKMAP, &map) == 0)
		(void)snprintf(library->path, sizeof(library->path), "%s",
			       map->l_name);
	library->is_fake = dlsym(library->handle, "fsdp_is_fake");
	return true;
}

const char *library_find(const struct library *library,
			 const struct library_symbol *symbols, size_t n,
			 void *table)
{
	const char *missing = NULL;

	for (size_t i = 0; i < n; i++) {
		void *address = dlsym(library->handle, symbols[i].name);

		if (!address && !missing)
			missing = symbols[i].name;
		/* C has no conversion from object pointers to function
		 * pointers. */
		memcpy((char *)table + symbols[i].offset, &address,
		       sizeof(address));
	}
	return missing;
}
