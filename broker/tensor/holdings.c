#include "broker/tensor/holdings.h"
#include "broker/tensor/store.h"

struct session_record *holdings_record(const struct holdings *holdings)
{
	return catalog_session(&holdings->store->catalog, holdings->index);
}
