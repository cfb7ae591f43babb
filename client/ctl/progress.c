/*
 * Shows the progress of a long transfer. The rate is the mean since the start,
 * because it does not jump, and the remaining time is computed from it.
 */
#include "client/ctl/progress.h"

#include "client/ctl/format.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define TTY_EVERY_NS   100000000ull  /* faster updates are not visible */
#define PLAIN_EVERY_NS 5000000000ull /* keeps logs short */
#define BAR_MAX        40

void progress_init(struct progress *progress, const char *label, uint64_t size,
		   bool is_quiet)
{
	*progress = (struct progress){.label = label,
				      .size = size,
				      .start_ns = format_now_ns(),
				      .is_quiet = is_quiet,
				      .is_tty = isatty(STDERR_FILENO)};
	progress->last_ns = progress->start_ns;
}

double progress_seconds(const struct progress *progress)
{
	return (double)(format_now_ns() - progress->start_ns) / 1e9;
}

/* Formats "1.2 GiB of 3.4 GiB, 800.0 MiB/s, 3 s left". */
static int figures(const struct progress *progress, char *text, size_t size)
{
	double seconds = progress_seconds(progress);
	double rate = seconds > 0 ? (double)progress->done / seconds : 0;
	double left =
		rate > 0 ? (double)(progress->size - progress->done) / rate : 0;
	char done[FORMAT_SIZE], all[FORMAT_SIZE], speed[FORMAT_SIZE];
	char time[FORMAT_SIZE];

	return snprintf(text, size, "%s of %s, %s/s, %s left",
			format_size(progress->done, done),
			format_size(progress->size, all),
			format_size((uint64_t)rate, speed),
			format_age((uint64_t)left * 1000 + 1000, time));
}

static int bar_width(int n_taken)
{
	struct winsize window;
	int width = 80;

	if (ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col)
		width = window.ws_col;
	/* two columns for the brackets, and one so that the line never wraps */
	width -= n_taken + 3;
	return width > BAR_MAX ? BAR_MAX : width;
}

static void draw(struct progress *progress)
{
	char text[256], bar[BAR_MAX + 1];
	int n = figures(progress, text, sizeof(text));
	int width = bar_width((int)strlen(progress->label) + n + 4);
	int full;

	progress->is_drawn = true;
	if (width < 4) {
		fprintf(stderr, "\r%s\033[K", text);
		return;
	}
	full = (int)((double)width * (double)progress->done /
		     (double)progress->size);
	memset(bar, '-', (size_t)width);
	memset(bar, '#', (size_t)full);
	bar[width] = '\0';
	fprintf(stderr, "\r%s  [%s]  %s\033[K", progress->label, bar, text);
}

void progress_add(struct progress *progress, uint64_t size)
{
	uint64_t now_ns = format_now_ns();
	char text[256];

	progress->done += size;
	if (progress->is_quiet || progress->done > progress->size ||
	    now_ns - progress->last_ns <
		    (progress->is_tty ? TTY_EVERY_NS : PLAIN_EVERY_NS))
		return;
	progress->last_ns = now_ns;
	if (progress->is_tty) {
		draw(progress);
		return;
	}
	figures(progress, text, sizeof(text));
	fprintf(stderr, "%s: %s\n", progress->label, text);
}

void progress_deinit(struct progress *progress)
{
	if (progress->is_drawn)
		fputs("\r\033[K", stderr);
	progress->is_drawn = false;
}
