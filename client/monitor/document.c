#include "client/monitor/document.h"
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
