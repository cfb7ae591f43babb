/* The functions of fsdp_collective.h, each as one exchange. */
#include "client/fsdp_collective.h"
#include "client/rank/comm.h"
#include "client/rank/host_exchange.h"
#include "client/rank/run_board.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

/* The limits of small reductions, in bytes of all ranks together. Up to these
 * limits each rank that gets the result reduces everything, with a single wait;
 * above them, each rank reduces its share. */
#define SMALL_ALL_REDUCE (UINT64_C(256) << 10)
#define SMALL_REDUCE     (UINT64_C(1024) << 10)

_Static_assert((int)FSDP_SUM == (int)FOLD_SUM &&
		       (int)FSDP_MEAN == (int)FOLD_MEAN &&
		       (int)FSDP_PRODUCT == (int)FOLD_PRODUCT &&
		       (int)FSDP_MIN == (int)FOLD_MIN &&
		       (int)FSDP_MAX == (int)FOLD_MAX &&
		       (int)FSDP_BAND == (int)FOLD_BAND &&
		       (int)FSDP_BOR == (int)FOLD_BOR &&
		       (int)FSDP_BXOR == (int)FOLD_BXOR,
	       "one numbering of reductions");

/* --- checks -------------------------------------------------------------- */

static uint32_t world(const struct exchange *exchange)
{
	return exchange->comm->board.n_ranks;
}

static int check_root(const struct exchange *exchange, struct error *err)
{
	return exchange->root < world(exchange)
		       ? 0
		       : error_set(err, -EINVAL,
				   "root is rank %u, but there are %u ranks",
				   exchange->root, world(exchange));
}

/* Check the arguments of a call, without the calls of other ranks. `root` is
 * NULL if there is none. */
static int begin(struct exchange *exchange, struct fsdp_comm *comm,
		 enum exchange_kind kind, enum fsdp_dtype dtype,
		 const uint32_t *root, struct error *err)
{
	int r = comm_check(comm, err);

	if (r == 0 && !dtype_size(dtype))
		r = error_set(err, -EINVAL, "there is no dtype %d", (int)dtype);
	if (r == 0)
		r = run_board_open(comm, err);
	if (r == 0)
		r = comm_check_run(comm, err);
	if (r < 0)
		return r;
	exchange->comm = comm;
	exchange->kind = kind;
	exchange->dtype = dtype;
	exchange->how = EXCHANGE_NONE;
	exchange->root = root ? *root : EXCHANGE_NONE;
	return root ? check_root(exchange, err) : 0;
}

static bool is_root(const struct exchange *exchange)
{
	return exchange->root == exchange->comm->rank;
}

/* Tell whether this rank gets the result. Without a root, all ranks do. */
static bool is_receiver(const struct exchange *exchange)
{
	return exchange->root == EXCHANGE_NONE || is_root(exchange);
}

/* Check an argument and convert it to bytes. `name` is its name. */
static int take_bytes(const struct exchange *exchange, const void *data,
		      uint64_t count, const char *name, struct bytes *ret,
		      struct error *err)
{
	uint64_t size;

	if (__builtin_mul_overflow(count, dtype_size(exchange->dtype), &size) ||
	    size > INT64_MAX)
		return error_set(
			err, -EINVAL,
			"`%s` cannot have %" PRIu64
			" elements: they would have 2^63 bytes or more",
			name, count);
	if (size && !data)
		return error_set(err, -EINVAL,
				 "`%s` has %" PRIu64 " elements, but is NULL",
				 name, count);
	*ret = (struct bytes){(uint8_t *)data, size};
	return 0;
}

static int take_parts(const struct exchange *exchange,
		      const struct fsdp_part *parts, const char *name,
		      struct bytes *ret, struct error *err)
{
	int r = parts ? 0
		      : error_set(err, -EINVAL,
				  "`%s` is NULL; pass one part for each rank",
				  name);

	for (uint32_t i = 0; i < world(exchange) && r == 0; i++)
		r = take_bytes(exchange, parts[i].data, parts[i].count, name,
			       &ret[i], err);
	return r;
}

/* Give the bytes to those that get the result. */
static void share(struct exchange *exchange, const struct bytes *bytes)
{
	exchange->is_shared = true;
	exchange->give[0] = *bytes;
	exchange->to = exchange->root == EXCHANGE_NONE
			       ? UINT64_MAX
			       : UINT64_C(1) << exchange->root;
}

/* --- copies -------------------------------------------------------------- */

int fsdp_broadcast(struct fsdp_comm *comm, enum fsdp_dtype dtype, void *data,
		   uint64_t count, uint32_t root)
{
	struct error *err = error_of_thread();
	struct exchange exchange = {.comm = NULL};
	struct bytes bytes;
	int r = begin(&exchange, comm, EXCHANGE_BROADCAST, dtype, &root, err);

	if (r == 0)
		r = take_bytes(&exchange, data, count, "data", &bytes, err);
	if (r < 0)
		return r;
	exchange.take[root] = bytes;
	exchange.is_shared = true;
	if (is_root(&exchange)) {
		exchange.give[0] = bytes;
		exchange.to = UINT64_MAX;
	}
	return host_exchange_run(&exchange, err);
}

static int gather(struct fsdp_comm *comm, enum exchange_kind kind,
		  enum fsdp_dtype dtype, const void *in, uint64_t count,
		  const struct fsdp_part *out, const uint32_t *root)
{
	struct error *err = error_of_thread();
	struct exchange exchange = {.comm = NULL};
	struct bytes bytes;
	int r = begin(&exchange, comm, kind, dtype, root, err);

	if (r == 0)
		r = take_bytes(&exchange, in, count, "in", &bytes, err);
	if (r == 0 && is_receiver(&exchange))
		r = take_parts(&exchange, out, "out", exchange.take, err);
	if (r < 0)
		return r;
	share(&exchange, &bytes);
	return host_exchange_run(&exchange, err);
}

int fsdp_all_gather(struct fsdp_comm *comm, enum fsdp_dtype dtype,
		    const void *in, uint64_t count, const struct fsdp_part *out)
{
	return gather(comm, EXCHANGE_ALL_GATHER, dtype, in, count, out, NULL);
}

int fsdp_gather_to(struct fsdp_comm *comm, enum fsdp_dtype dtype,
		   const void *in, uint64_t count, const struct fsdp_part *out,
		   uint32_t root)
{
	return gather(comm, EXCHANGE_GATHER, dtype, in, count, out, &root);
}

int fsdp_scatter_from(struct fsdp_comm *comm, enum fsdp_dtype dtype,
		      const struct fsdp_part *in, void *out, uint64_t count,
		      uint32_t root)
{
	struct error *err = error_of_thread();
	struct exchange exchange = {.comm = NULL};
	int r = begin(&exchange, comm, EXCHANGE_SCATTER, dtype, &root, err);

	if (r == 0 && is_root(&exchange))
		r = take_parts(&exchange, in, "in", exchange.give, err);
	if (r == 0)
		r = take_bytes(&exchange, out, count, "out",
			       &exchange.take[root], err);
	return r < 0 ? r : host_exchange_run(&exchange, err);
}

int fsdp_all_to_all(struct fsdp_comm *comm, enum fsdp_dtype dtype,
		    const struct fsdp_part *in, const struct fsdp_part *out)
{
	struct error *err = error_of_thread();
	struct exchange exchange = {.comm = NULL};
	int r = begin(&exchange, comm, EXCHANGE_ALL_TO_ALL, dtype, NULL, err);

	if (r == 0)
		r = take_parts(&exchange, in, "in", exchange.give, err);
	if (r == 0)
		r = take_parts(&exchange, out, "out", exchange.take, err);
	return r < 0 ? r : host_exchange_run(&exchange, err);
}

/* --- reductions ---------------------------------------------------------- */

/* Set the fold of an exchange, to which each rank gives as many bytes as this
 * rank takes. */
static void set_fold(struct exchange *exchange, const struct fold *fold,
		     const struct bytes *result)
{
	exchange->fold = fold;
	exchange->result = result->data;
	for (uint32_t i = 0; i < world(exchange); i++)
		exchange->take[i].size = result->size;
}

/* Do the same as take_bytes() for `out`, which is written as numbers and must
 * therefore be aligned. */
static int take_result(const struct exchange *exchange, const struct fold *fold,
		       void *out, uint64_t count, struct bytes *ret,
		       struct error *err)
{
	int r = take_bytes(exchange, out, count, "out", ret, err);

	if (r < 0)
		return r;
	return (uintptr_t)out % fold->width == 0
		       ? 0
		       : error_set(err, -EINVAL, "`out` is not aligned for %s",
				   dtype_name(exchange->dtype));
}

static int begin_fold(struct exchange *exchange, struct fsdp_comm *comm,
		      enum exchange_kind kind, enum fsdp_dtype dtype,
		      enum fsdp_reduction how, const uint32_t *root,
		      struct fold *ret, struct error *err)
{
	int r = begin(exchange, comm, kind, dtype, root, err);

	if (r < 0)
		return r;
	exchange->how = how;
	return fold_init(ret, dtype, how, world(exchange), err);
}

/* Divide `bytes` into one part of whole cache lines for each rank. */
static void cut(const struct bytes *bytes, uint32_t n, struct bytes *ret)
{
	uint64_t share = ((bytes->size + n - 1) / n + 63) / 64 * 64, at = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint64_t left = bytes->size - at;

		ret[i].data = bytes->data + at;
		ret[i].size = left < share ? left : share;
		at += ret[i].size;
	}
}

static bool is_large(const struct exchange *exchange, const struct bytes *in,
		     uint64_t limit)
{
	return world(exchange) > 1 && in->size > limit / world(exchange);
}

/* Let each rank reduce its share of `in`. `out` is NULL if this rank does not
 * get the result. */
static int reduce_shares(struct exchange *exchange, enum exchange_kind kind,
			 const struct fold *fold, const struct bytes *in,
			 void *out, struct error *err)
{
	exchange->kind = kind;
	exchange->has_shares = true;
	cut(in, world(exchange), exchange->give);
	set_fold(exchange, fold,
		 &(struct bytes){out,
				 exchange->give[exchange->comm->rank].size});
	return host_exchange_run(exchange, err);
}

static int reduce(struct fsdp_comm *comm, enum fsdp_dtype dtype,
		  enum fsdp_reduction how, const void *in, void *out,
		  uint64_t count, const uint32_t *root)
{
	struct error *err = error_of_thread();
	struct exchange exchange = {.comm = NULL};
	struct bytes bytes, result = {.data = NULL};
	struct fold fold;
	int r = begin_fold(&exchange, comm,
			   root ? EXCHANGE_REDUCE : EXCHANGE_ALL_REDUCE, dtype,
			   how, root, &fold, err);

	if (r == 0)
		r = take_bytes(&exchange, in, count, "in", &bytes, err);
	if (r == 0 && is_receiver(&exchange))
		r = take_result(&exchange, &fold, out, count, &result, err);
	if (r < 0)
		return r;
	if (is_large(&exchange, &bytes, root ? SMALL_REDUCE : SMALL_ALL_REDUCE))
		return reduce_shares(&exchange,
				     root ? EXCHANGE_LARGE_REDUCE
					  : EXCHANGE_LARGE_ALL_REDUCE,
				     &fold, &bytes, result.data, err);
	share(&exchange, &bytes);
	if (is_receiver(&exchange))
		set_fold(&exchange, &fold, &result);
	return host_exchange_run(&exchange, err);
}

int fsdp_reduce_to(struct fsdp_comm *comm, enum fsdp_dtype dtype,
		   enum fsdp_reduction how, const void *in, void *out,
		   uint64_t count, uint32_t root)
{
	return reduce(comm, dtype, how, in, out, count, &root);
}

int fsdp_all_reduce(struct fsdp_comm *comm, enum fsdp_dtype dtype,
		    enum fsdp_reduction how, const void *in, void *out,
		    uint64_t count)
{
	return reduce(comm, dtype, how, in, out, count, NULL);
}

int fsdp_reduce_scatter(struct fsdp_comm *comm, enum fsdp_dtype dtype,
			enum fsdp_reduction how, const struct fsdp_part *in,
			void *out, uint64_t count)
{
	struct error *err = error_of_thread();
	struct exchange exchange = {.comm = NULL};
	struct bytes result;
	struct fold fold;
	int r = begin_fold(&exchange, comm, EXCHANGE_REDUCE_SCATTER, dtype, how,
			   NULL, &fold, err);

	if (r == 0)
		r = take_parts(&exchange, in, "in", exchange.give, err);
	if (r == 0)
		r = take_result(&exchange, &fold, out, count, &result, err);
	if (r < 0)
		return r;
	set_fold(&exchange, &fold, &result);
	return host_exchange_run(&exchange, err);
}

/* --- without other ranks ------------------------------------------------- */

/* Check a tensor. `name` is "in[N]" or "out". */
static int check_tensor(const struct fold *fold, const char *name,
			const void *data, uint64_t count, struct error *err)
{
	if (count && !data)
		return error_set(err, -EINVAL,
				 "`%s` has %" PRIu64 " elements, but is NULL",
				 name, count);
	if ((uintptr_t)data % fold->width)
		return error_set(err, -EINVAL,
				 "`%s` is not aligned for its dtype", name);
	return 0;
}

static int check_tensors(const struct fold *fold, const void *const *in,
			 uint32_t n, const void *out, uint64_t count,
			 struct error *err)
{
	char name[sizeof("in[4294967295]")];

	for (uint32_t i = 0; i < n; i++) {
		int r;

		snprintf(name, sizeof(name), "in[%" PRIu32 "]", i);
		r = check_tensor(fold, name, in[i], count, err);
		if (r < 0)
			return r;
	}
	return check_tensor(fold, "out", out, count, err);
}

int fsdp_fold(enum fsdp_dtype dtype, enum fsdp_reduction how,
	      const void *const *in, uint32_t n, void *out, uint64_t count)
{
	struct error *err = error_of_thread();
	struct fold fold;
	uint64_t size;
	int r;

	if (n == 0 || n > FSDP_MAX_RANKS || !in)
		return error_set(err, -EINVAL,
				 "there must be 1 to %d tensors, not %" PRIu32,
				 FSDP_MAX_RANKS, in ? n : 0);
	r = fold_init(&fold, dtype, how, n, err);
	if (r < 0)
		return r;
	if (__builtin_mul_overflow(count, dtype_size(dtype), &size) ||
	    size > INT64_MAX)
		return error_set(
			err, -EINVAL,
			"`out` cannot have %" PRIu64
			" elements of %s: they would have 2^63 bytes or more",
			count, dtype_name(dtype));
	r = check_tensors(&fold, in, n, out, count, err);
	if (r == 0 && count)
		fold_run(&fold, out, in, n, size);
	return r;
}
