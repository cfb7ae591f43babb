/* Finds similar words. An exchange of two neighbouring letters counts as one
 * edit. */
#include "client/ctl/suggest.h"

#include <string.h>

#define WORD_MAX 31

static size_t least(size_t a, size_t b)
{
	return a < b ? a : b;
}

size_t suggest_distance(const char *a, const char *b)
{
	size_t d[WORD_MAX + 1][WORD_MAX + 1];
	size_t n_a = strlen(a), n_b = strlen(b);

	if (n_a > WORD_MAX || n_b > WORD_MAX)
		return WORD_MAX + 1;
	for (size_t i = 0; i <= n_a; i++)
		d[i][0] = i;
	for (size_t j = 0; j <= n_b; j++)
		d[0][j] = j;
	for (size_t i = 1; i <= n_a; i++) {
		for (size_t j = 1; j <= n_b; j++) {
			d[i][j] =
				least(least(d[i - 1][j], d[i][j - 1]) + 1,
				      d[i - 1][j - 1] + (a[i - 1] != b[j - 1]));
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] &&
			    a[i - 2] == b[j - 1])
				d[i][j] = least(d[i][j], d[i - 2][j - 2] + 1);
		}
	}
	return d[n_a][n_b];
}
