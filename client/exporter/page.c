#include "client/exporter/page.h"
#include <string.h>

/* CMake makes this from the files in page/. */
#include "client/exporter/page_files.h"

#define BYTES(name) (const char *)name, sizeof(name)

static const struct page_file files[] = {
	{"/", "text/html; charset=utf-8", BYTES(page_index_html)},
	{"/style.css", "text/css; charset=utf-8", BYTES(page_style_css)},
	{"/app.js", "text/javascript; charset=utf-8", BYTES(page_app_js)},
	{"/icon.svg", "image/svg+xml", BYTES(page_icon_svg)},
};

const struct page_file *page_find(const char *path)
{
	for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++)
		if (strcmp(files[i].path, path) == 0)
			return &files[i];
	return NULL;
}
