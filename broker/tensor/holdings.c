#include "broker/tensor/holdings.h"
#include "broker/broker.h"

struct session_record *holdings_record(const struct holdings *holdings)
{
	return catalog_session(&holdings->broker->catalog, holdings->index);
}
