/*
 * The libgit2 of Criterion's programs. Criterion uses it to show differences of
 * texts, which our assertions (lib/check.h) do not need. But the real one and
 * the 14 libraries that it needs are loaded into each process of each test, and
 * as it begins it reads all certificates of /etc/ssl.
 */
#define API __attribute__((visibility("default")))

API int git_libgit2_init(void);
API int git_libgit2_shutdown(void);
API int git_diff_buffers(void);

int git_libgit2_init(void)
{
	return 1;
}

int git_libgit2_shutdown(void)
{
	return 0;
}

/* Criterion shows no difference then. */
int git_diff_buffers(void)
{
	return -1;
}
