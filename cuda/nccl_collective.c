#include "cuda/nccl_collective.h"
#include "cuda/context.h"
#include "proto/error.h"
#include "proto/tensor.h"
#include <errno.h>
#include <string.h>

/* Returns NCCL's type of a dtype that can be summed, or -1 for other dtypes. */
static int type_of(uint32_t dtype)
{
	switch (dtype) {
	case DTYPE_U8:
		return ncclUint8;
	case DTYPE_I8:
		return ncclInt8;
	case DTYPE_U32:
		return ncclUint32;
	case DTYPE_I32:
		return ncclInt32;
	case DTYPE_U64:
		return ncclUint64;
	case DTYPE_I64:
		return ncclInt64;
	case DTYPE_F16:
		return ncclFloat16;
	case DTYPE_BF16:
		return ncclBfloat16;
	case DTYPE_F32:
		return ncclFloat32;
	case DTYPE_F64:
		return ncclFloat64;
	default:
		return -1;
	}
}

static void *pointer(CUdeviceptr address)
{
	return (void *)(uintptr_t)address;
}

static int launch(const struct kernels_launch *kernels, CUstream stream,
		  struct error *err)
{
	return kernels ? kernels_launch(kernels, stream, err) : 0;
}

/*
 * All parts are one group. If a call in it fails, the group must be ended even
 * so; GroupEnd() then drops it and returns the error once more.
 */
static ncclResult_t end_group(ncclResult_t result)
{
	ncclResult_t end = nccl.GroupEnd();

	return result == ncclSuccess ? end : result;
}

/* --- gathers ------------------------------------------------------------- */

/* A gather copies bytes, so it can have any dtype. */
static ncclResult_t gather_parts(const struct nccl_comm *comm,
				 const struct nccl_gather *gather,
				 CUstream stream)
{
	uint64_t size = dtype_size(gather->dtype);
	ncclResult_t result = nccl.GroupStart();

	if (result != ncclSuccess)
		return result;
	for (uint32_t i = 0; result == ncclSuccess && i < gather->n_parts;
	     i++) {
		const struct nccl_part *part = &gather->parts[i];

		result = nccl.AllGather(pointer(part->chunk),
					pointer(part->all), part->numel * size,
					ncclUint8, comm->gathers, stream);
	}
	return end_group(result);
}

static int gather_on(struct nccl_comm *comm, const struct nccl_gather *gather,
		     CUstream stream, struct error *err)
{
	int r = launch(gather->copy_in, stream, err);

	if (r == 0)
		r = nccl_comm_called(comm, gather_parts(comm, gather, stream),
				     "gather", err);
	if (r == 0)
		r = launch(gather->copy_out, stream, err);
	return r;
}

int nccl_gather(struct nccl_comm *comm, const struct nccl_gather *gather,
		CUstream stream, struct error *err)
{
	int r;

	if (dtype_size(gather->dtype) == 0)
		return error_set(err, -EINVAL,
				 "cannot gather elements of dtype %u",
				 gather->dtype);
	r = nccl_comm_wait(comm, err);
	if (r == 0)
		r = context_enter(comm->options.device, err);
	if (r < 0)
		return r;
	r = gather_on(comm, gather, stream, err);
	context_leave();
	return r;
}

/* --- reductions ---------------------------------------------------------- */

/* The op is shared by all calls of one reduction's group. */
struct op {
	ncclDataType_t type;
	ncclRedOp_t op;
	bool is_made; /* we made it, and must destroy it */
};

/* An element of a dtype whose sums can be divided by NCCL (docs/fsdp.md). */
union scalar {
	float f32;
	uint16_t bf16;
};

static union scalar make_scalar(uint32_t dtype, double factor)
{
	union scalar scalar = {.f32 = (float)factor};
	uint32_t bits;

	if (dtype == DTYPE_F32)
		return scalar;
	/* This rounds to nearest even. */
	memcpy(&bits, &scalar, sizeof(bits));
	bits += 0x7fff + (bits >> 16 & 1);
	scalar.bf16 = (uint16_t)(bits >> 16);
	return scalar;
}

static int make_premul(struct nccl_comm *comm, const struct nccl_reduce *reduce,
		       struct op *op, struct error *err)
{
	union scalar scalar = make_scalar(reduce->dtype, reduce->premul);
	int r = nccl_comm_called(
		comm,
		nccl.RedOpCreatePreMulSum(&op->op, &scalar, op->type,
					  ncclScalarHostImmediate,
					  comm->reductions),
		"make an operation", err);

	op->is_made = r == 0;
	return r;
}

/* The mean of one value is that value, so a sum is used. NCCL was seen to get
 * the mean wrong. */
static int make_op(struct nccl_comm *comm, const struct nccl_reduce *reduce,
		   enum nccl_op kind, uint32_t n_ranks, struct op *ret,
		   struct error *err)
{
	*ret = (struct op){.type = (ncclDataType_t)type_of(reduce->dtype)};
	if (kind == NCCL_OP_PREMUL_SUM)
		return make_premul(comm, reduce, ret, err);
	ret->op = kind == NCCL_OP_AVG && n_ranks > 1 ? ncclAvg : ncclSum;
	return 0;
}

static ncclResult_t scatter_parts(const struct nccl_comm *comm,
				  const struct nccl_reduce *reduce,
				  const struct op *op, CUstream stream)
{
	ncclResult_t result = nccl.GroupStart();

	if (result != ncclSuccess)
		return result;
	for (uint32_t i = 0; result == ncclSuccess && i < reduce->n_parts;
	     i++) {
		const struct nccl_part *part = &reduce->parts[i];

		result = nccl.ReduceScatter(
			pointer(part->all), pointer(part->chunk), part->numel,
			op->type, op->op, comm->reductions, stream);
	}
	return end_group(result);
}

static int scatter(struct nccl_comm *comm, const struct nccl_reduce *reduce,
		   CUstream stream, struct error *err)
{
	struct op op;
	int r;

	if (reduce->n_parts == 0)
		return 0;
	r = make_op(comm, reduce, reduce->scatter_op, comm->options.n_shards,
		    &op, err);
	if (r < 0)
		return r;
	r = nccl_comm_called(comm, scatter_parts(comm, reduce, &op, stream),
			     "reduce-scatter", err);
	if (op.is_made)
		nccl.RedOpDestroy(op.op, comm->reductions);
	return r;
}

static ncclResult_t reduce_sums(const struct nccl_comm *comm,
				const struct nccl_reduce *reduce,
				const struct op *op, CUstream stream)
{
	ncclResult_t result = nccl.GroupStart();

	if (result != ncclSuccess)
		return result;
	for (uint32_t i = 0; result == ncclSuccess && i < reduce->n_sums; i++) {
		void *sum = pointer(reduce->sums[i].address);

		result = nccl.AllReduce(sum, sum, reduce->sums[i].numel,
					op->type, op->op, comm->replicas,
					stream);
	}
	return end_group(result);
}

static int all_reduce(struct nccl_comm *comm, const struct nccl_reduce *reduce,
		      CUstream stream, struct error *err)
{
	struct op op;
	int r;

	if (reduce->n_sums == 0)
		return 0;
	r = make_op(comm, reduce, reduce->reduce_op, comm->options.n_replicas,
		    &op, err);
	if (r < 0)
		return r;
	return nccl_comm_called(comm, reduce_sums(comm, reduce, &op, stream),
				"all-reduce", err);
}

static int check(const struct nccl_comm *comm, const struct nccl_reduce *reduce,
		 struct error *err)
{
	if (type_of(reduce->dtype) < 0)
		return error_set(
			err, -EINVAL,
			"NCCL cannot reduce %s; it can reduce integers of 8, "
			"32 and 64 bits, f16, bf16, f32 and f64",
			dtype_name(reduce->dtype));
	if (reduce->n_parts > 0 && reduce->scatter_op == NCCL_OP_PREMUL_SUM &&
	    reduce->dtype != DTYPE_F32 && reduce->dtype != DTYPE_BF16)
		return error_set(err, -EINVAL,
				 "NCCL cannot multiply %s in a sum; it can "
				 "multiply f32 and bf16",
				 dtype_name(reduce->dtype));
	if (reduce->n_sums > 0 && !comm->replicas)
		return error_set(err, -EINVAL,
				 "communicator '%s' has no replicas to reduce "
				 "over",
				 comm->options.name);
	if (reduce->n_sums > 0 && reduce->reduce_op == NCCL_OP_PREMUL_SUM)
		return error_set(err, -EINVAL,
				 "cannot multiply sums over the replicas");
	return 0;
}

static int reduce_on(struct nccl_comm *comm, const struct nccl_reduce *reduce,
		     CUstream stream, struct error *err)
{
	int r = launch(reduce->chunk_cat, stream, err);

	if (r == 0)
		r = scatter(comm, reduce, stream, err);
	if (r == 0)
		r = launch(reduce->add, stream, err);
	if (r == 0)
		r = all_reduce(comm, reduce, stream, err);
	if (r == 0)
		r = launch(reduce->grad_out, stream, err);
	return r;
}

int nccl_reduce(struct nccl_comm *comm, const struct nccl_reduce *reduce,
		CUstream stream, struct error *err)
{
	int r = nccl_comm_wait(comm, err);

	if (r == 0)
		r = check(comm, reduce, err);
	if (r == 0)
		r = context_enter(comm->options.device, err);
	if (r < 0)
		return r;
	r = reduce_on(comm, reduce, stream, err);
	context_leave();
	return r;
}
