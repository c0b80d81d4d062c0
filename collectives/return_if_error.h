#pragma once

#include "absl/status/status.h"

#define RETURN_IF_ERROR(expression) \
  if (absl::Status status = (expression); !status.ok()) return status
