/*
 * top: shows the state of the broker live, on the whole screen or as pages of
 * plain text.
 */
#include "client/ctl/args.h"
#include "client/ctl/format.h"
#include "client/ctl/top.h"
#include "client/ctl/verb.h"
#include "proto/error.h"

#include <curses.h>
#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOK_MS 200
/* The size of a buffer for the keys and names of all views. */
#define VIEWS_SIZE 128
/* Control-L, with which users ask to redraw the screen. */
#define KEY_REDRAW 0x0c

static int check_top(const struct args *args, struct error *err)
{
	struct top top = {0};
	char titles[TOP_TITLES];

	top_set_view(&top, args->view);
	top_list_titles(&top, titles);
	if (args->column && !top_sort_by(&top, args->column))
		return error_set(err, -EINVAL,
				 "the view of %s has no column '%s': give one "
				 "of %s",
				 top_view_name(top.view), args->column, titles);
	if (!args_has(args, ARG_BATCH) && args_has(args, ARG_PAGES))
		return error_set(err, -EINVAL, "--pages needs --batch");
	if (!args_has(args, ARG_BATCH) && args_has(args, ARG_ROWS))
		return error_set(err, -EINVAL, "--rows needs --batch");
	if (!args_has(args, ARG_BATCH) &&
	    (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)))
		return error_set(err, -EINVAL,
				 "standard %s is not a terminal: give --batch",
				 isatty(STDIN_FILENO) ? "output" : "input");
	return 0;
}

/* --- plain text ---------------------------------------------------------- */

static int run_batch(struct top *top, const struct args *args,
		     struct error *err)
{
	uint32_t n = args_has(args, ARG_PAGES) ? args->count : 0;
	int r = 0;

	for (uint32_t i = 0; r == 0 && (n == 0 || i < n); i++) {
		if (i > 0 && (putchar('\n') == EOF || fflush(stdout) == EOF ||
			      usleep((useconds_t)args->delay_ms * 1000) < 0))
			return error_errno(err, -errno,
					   "cannot write standard output");
		r = top_read(top, err);
		if (r == 0)
			r = top_print(top, 0, stdout, err);
	}
	return r;
}

/* --- the screen ---------------------------------------------------------- */

struct screen {
	char *text; /* the last page, owned */
	size_t size;
	size_t first; /* the first row that is shown */
	bool is_ended;
	bool is_new;       /* the rows must be read again at once */
	bool is_reordered; /* the order has changed since then */
};

static int print_page(struct top *top, struct screen *screen, struct error *err)
{
	FILE *file;
	int r;

	free(screen->text);
	screen->text = NULL;
	file = open_memstream(&screen->text, &screen->size);
	if (!file)
		return error_nomem(err, "the screen");
	r = top_print(top, COLS, file, err);
	if (fclose(file) == EOF && r == 0)
		r = error_nomem(err, "the screen");
	return r;
}

/* Returns how many of the `size` bytes the screen has columns for. A character
 * in UTF-8 has one column, whatever its bytes. */
static int bytes_that_fit(const char *line, size_t size)
{
	size_t n = 0;

	for (int columns = COLS; n < size; n++) {
		columns -= ((unsigned char)line[n] & 0xc0) != 0x80;
		if (columns < 0)
			break;
	}
	return (int)n;
}

static void draw_line(int y, const char *line, size_t size)
{
	bool is_title = y == TOP_HEAD - 1;

	if (is_title)
		attron(A_REVERSE);
	move(y, 0);
	clrtoeol();
	addnstr(line, bytes_that_fit(line, size));
	if (is_title) {
		for (int x = getcurx(stdscr); x > 0 && x < COLS; x++)
			addch(' ');
		attroff(A_REVERSE);
	}
}

/* Lists the views with their keys, or in a short form if there is not enough
 * room. */
static void name_views(int room, char ret[VIEWS_SIZE])
{
	int n = 0;

	for (enum top_view view = 0; view < TOP_N; view++)
		n += snprintf(ret + n, (size_t)(VIEWS_SIZE - n), "  %d %s",
			      view + 1, top_view_name(view));
	if (n > room)
		strcpy(ret, "  1-6 views  up, down scroll");
}

static void draw_help(const struct top *top)
{
	const char *by = top->rows.by->title;
	char views[VIEWS_SIZE], text[256];
	int n;

	n = snprintf(text, sizeof(text), "%s by %s  q quit  s sort  r reverse",
		     top_view_name(top->view), by + (*by == '>'));
	name_views(COLS - n, views);
	snprintf(text + n, sizeof(text) - (size_t)n, "%s", views);
	attron(A_BOLD);
	draw_line(LINES - 1, text, strlen(text));
	attroff(A_BOLD);
}

/* Draws the head and as many rows as fit, from screen->first on. */
static void draw(const struct top *top, const struct screen *screen)
{
	const char *p = screen->text;
	size_t n = 0;
	int y = 0;

	erase();
	while (p && *p && y < LINES - 1) {
		size_t size = strcspn(p, "\n");

		if (n < TOP_HEAD || n >= TOP_HEAD + screen->first)
			draw_line(y++, p, size);
		p += size + (p[size] == '\n');
		n++;
	}
	draw_help(top);
	refresh();
}

static void scroll_rows(const struct top *top, struct screen *screen, int by)
{
	if (by < 0 && screen->first < (size_t)-by)
		screen->first = 0;
	else
		screen->first += (size_t)by;
	if (screen->first >= top->rows.n_added)
		screen->first = top->rows.n_added ? top->rows.n_added - 1 : 0;
}

/* Returns how many rows to read. They are more than the screen shows, so that
 * scrolling seldom needs new ones. */
static size_t rows_wanted(const struct screen *screen)
{
	return screen->first + 2 * (size_t)LINES;
}

/* Returns whether rows were dropped that must be shown now, or that may come
 * first in another order. */
static bool is_short(const struct top *top, const struct screen *screen)
{
	return top->rows.n < top->rows.n_added &&
	       (screen->is_reordered ||
		top->rows.n < screen->first + (size_t)LINES);
}

static void handle_key(struct top *top, struct screen *screen, int key)
{
	if (key >= '1' && key < '1' + TOP_N) {
		screen->first = 0;
		screen->is_new = true;
		clearok(stdscr, TRUE);
		top_set_view(top, (enum top_view)(key - '1'));
		return;
	}
	switch (key) {
	case 'q':
		screen->is_ended = true;
		break;
	case 's':
		top_sort_next(top);
		screen->is_reordered = true;
		break;
	case 'r':
		top->rows.is_reversed = !top->rows.is_reversed;
		screen->is_reordered = true;
		break;
	case ' ':
		screen->is_new = true;
		break;
	case KEY_UP:
		scroll_rows(top, screen, -1);
		break;
	case KEY_DOWN:
		scroll_rows(top, screen, 1);
		break;
	case KEY_PPAGE:
		scroll_rows(top, screen, -(LINES - TOP_HEAD));
		break;
	case KEY_NPAGE:
		scroll_rows(top, screen, LINES - TOP_HEAD);
		break;
	case KEY_RESIZE:
	case KEY_REDRAW:
		clearok(stdscr, TRUE);
		break;
	default:
		break;
	}
}

/* Returns ERR if no key was pressed in time. A signal that comes just before
 * curses waits does not end the wait, so each wait is short. Otherwise a new
 * size of the terminal would be noticed late. */
static int wait_for_key(uint32_t delay_ms)
{
	uint64_t end_ns = format_now_ns() + delay_ms * UINT64_C(1000000);
	int key = ERR;

	while (key == ERR) {
		uint64_t now_ns = format_now_ns(), left_ms;

		if (now_ns >= end_ns)
			break;
		left_ms = (end_ns - now_ns) / 1000000 + 1;
		timeout(left_ms < LOOK_MS ? (int)left_ms : LOOK_MS);
		key = getch();
		/* A terminal that has hung up has no keys, but it does not
		 * wait, either. */
		if (key == ERR && !isatty(STDIN_FILENO))
			return 'q';
	}
	return key;
}

static int run_screen(struct top *top, const struct args *args,
		      struct error *err)
{
	struct screen screen = {.is_new = true};
	int r = 0;

	setlocale(LC_CTYPE, "");
	if (!newterm(NULL, stdout, stdin))
		return error_set(err, -ENOTTY,
				 "the terminal '%s' is not known: set TERM, or "
				 "give --batch",
				 getenv("TERM") ? getenv("TERM") : "");
	cbreak();
	noecho();
	curs_set(0);
	keypad(stdscr, TRUE);
	while (r == 0 && !screen.is_ended) {
		int key;

		top->rows.n_max = rows_wanted(&screen);
		if (screen.is_new || is_short(top, &screen)) {
			r = top_read(top, err);
			screen.is_reordered = false;
		}
		if (r == 0)
			r = print_page(top, &screen, err);
		if (r < 0)
			break;
		draw(top, &screen);
		screen.is_new = false;
		key = wait_for_key(args->delay_ms);
		if (key == ERR)
			screen.is_new = true;
		else
			handle_key(top, &screen, key);
	}
	endwin();
	free(screen.text);
	return r;
}

static int run_top(struct fsdp_client *client, const struct args *args,
		   struct error *err)
{
	struct top top = {.client = client, .rows.n_max = args->n_rows};
	int r;

	top_set_view(&top, args->view);
	if (args->column)
		(void)top_sort_by(&top, args->column);
	r = args_has(args, ARG_BATCH) ? run_batch(&top, args, err)
				      : run_screen(&top, args, err);
	top_deinit(&top);
	return r;
}

const struct verb verbs_top[] = {
	{.name = "top",
	 .operands = "",
	 .summary = "show the state of the broker live, on the whole screen",
	 .accepts = ARG_BIT(ARG_VIEW) | ARG_BIT(ARG_COLUMN) |
		    ARG_BIT(ARG_DELAY) | ARG_BIT(ARG_BATCH) |
		    ARG_BIT(ARG_PAGES) | ARG_BIT(ARG_ROWS),
	 .check = check_top,
	 .run = run_top},
	{0}};
