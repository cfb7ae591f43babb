#include "tests/lib/item.h"
#include "tests/lib/chaos.h"
#include <stdio.h>
#include <string.h>

void item_send_number(struct fsdp_channel *channel, uint64_t number)
{
	const struct fsdp_spec spec = {FSDP_U64, 0, {0}};
	struct fsdp_item *item;
	void *data;

	must(fsdp_item_begin(channel, -1, &item) == 0);
	must(fsdp_item_part(item, &spec, &data) == 0);
	*(uint64_t *)data = number;
	must(fsdp_item_send(item) == 0);
}

uint64_t item_number(const struct fsdp_item *item)
{
	struct fsdp_item_view view = {.struct_size = sizeof(view)};

	must(fsdp_item_view(item, 0, &view) == 0);
	return *(const uint64_t *)view.data;
}

struct fsdp_item *item_receive(struct fsdp_channel *channel, uint64_t number)
{
	struct fsdp_item *item;

	must(fsdp_item_receive(channel, -1, &item) == 0);
	must(item_number(item) == number);
	return item;
}

struct slots_page *item_page(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	struct slots_page *page = NULL;
	unsigned long begin;
	char line[512];

	while (maps && fgets(line, sizeof(line), maps)) {
		if (strstr(line, "fsdp-channel") && strstr(line, " rw-s ") &&
		    sscanf(line, "%lx-", &begin) == 1)
			page = (struct slots_page *)begin;
	}
	must(maps && fclose(maps) == 0 && page);
	return page;
}
