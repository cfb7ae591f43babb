#include "client/exporter/text.h"
#include <string.h>

json_t *text_number(uint64_t value)
{
	if (value == UINT64_MAX)
		return json_null();
	return json_integer((json_int_t)(value & INT64_MAX));
}

json_t *text_device(const struct fsdp_device *device)
{
	static const struct fsdp_device host;
	char text[FSDP_DEVICE_TEXT] = "host";

	if (memcmp(device, &host, sizeof(host)) != 0)
		fsdp_device_format(device, text);
	return json_string(text);
}
