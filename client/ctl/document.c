/* Answers for programs. Times are in milliseconds, sizes in bytes. */
#include "client/ctl/document.h"
#include "client/ctl/format.h"

#include "client/fsdp.h"
#include "proto/error.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

json_t *document_text(const char *text)
{
	json_t *string = json_string(text);
	char *ascii;

	if (string)
		return string;
	ascii = strdup(text);
	if (!ascii)
		return NULL;
	for (char *p = ascii; *p; p++) {
		if ((unsigned char)*p >= 0x80)
			*p = '?';
	}
	string = json_string(ascii);
	free(ascii);
	return string;
}

json_t *document_number(uint64_t value)
{
	return json_integer(value > INT64_MAX ? INT64_MAX : (json_int_t)value);
}

json_t *document_shape(const int64_t *shape, uint32_t n_dims)
{
	json_t *array = json_array();

	for (uint32_t i = 0; i < n_dims; i++) {
		if (json_array_append_new(array, json_integer(shape[i]))) {
			json_decref(array);
			return NULL;
		}
	}
	return array;
}

static const char *state_name(enum fsdp_state state)
{
	static const char *const names[] = {"free", "writing", "published",
					    "limbo"};

	return (size_t)state < sizeof(names) / sizeof(*names) ? names[state]
							      : "unknown";
}

json_t *document_entry(const struct fsdp_entry *entry)
{
	const struct fsdp_info *info = entry->info;
	char mode[16], device[FSDP_DEVICE_TEXT];

	fsdp_device_format(&info->device, device);
	snprintf(mode, sizeof(mode), "%04o", entry->mode);
	return json_pack(
		"{s:o, s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:s, s:s, "
		"s:o, s:o, s:I, s:b, s:b, s:o, s:s, s:s, s:b}",
		"name", document_text(info->name), "version",
		document_number(info->version), "dtype",
		fsdp_dtype_name(info->dtype), "shape",
		document_shape(info->shape, info->n_dims), "strides",
		document_shape(info->strides, info->n_dims), "bytes",
		document_number(info->size), "slot",
		document_number(info->slot), "generation",
		document_number(info->generation), "uid",
		(json_int_t)entry->uid, "gid", (json_int_t)entry->gid, "mode",
		mode, "state", state_name(entry->state), "age_ms",
		document_number(entry->age_ms), "ttl_left_ms",
		document_number(entry->ttl_left_ms), "holders",
		(json_int_t)entry->n_holders, "evictable",
		(entry->flags & FSDP_EVICTABLE) != 0, "tied",
		(entry->flags & FSDP_TIED) != 0, "bundle",
		document_number(entry->bundle), "device", device, "shared",
		format_shared(entry->shared), "tainted", info->is_tainted);
}

json_t *document_holder(const struct fsdp_holder *holder)
{
	return json_pack(
		"{s:o, s:I, s:I, s:o, s:I, s:b, s:b, s:b}", "session",
		document_number(holder->session), "pid",
		(json_int_t)holder->pid, "uid", (json_int_t)holder->uid,
		"command", document_text(holder->command), "holds",
		(json_int_t)holder->holds, "connected", holder->is_connected,
		"writer", holder->is_writer, "tainted", holder->is_tainted);
}

int document_print(json_t *document, struct error *err)
{
	int r;

	if (!document)
		return error_set(err, -ENOMEM, "out of memory for the answer");
	r = json_dumpf(document, stdout, JSON_INDENT(2));
	json_decref(document);
	if (r < 0 || putchar('\n') == EOF)
		return error_errno(err, -errno, "write standard output");
	return 0;
}
