#include "dispatcher/errors.h"

#include <c10/util/Exception.h>

#include <new>
#include <string>

namespace tpu {

void ThrowIfError(const absl::Status& status) {
  if (status.ok()) return;
  const std::string message(status.message());
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
      TORCH_CHECK_WITH(OutOfMemoryError, false, message);
    case absl::StatusCode::kOutOfRange:
      TORCH_CHECK_INDEX(false, message);
    case absl::StatusCode::kInvalidArgument:
      TORCH_CHECK_VALUE(false, message);
    case absl::StatusCode::kNotFound:
      TORCH_CHECK_LINALG(false, message);
    case absl::StatusCode::kUnimplemented:
      TORCH_CHECK_NOT_IMPLEMENTED(false, message);
    default:
      TORCH_CHECK(false, message);
  }
}

absl::Status StatusOfCurrentException() {
  try {
    throw;
  } catch (const c10::OutOfMemoryError& e) {
    return absl::ResourceExhaustedError(e.what_without_backtrace());
  } catch (const c10::IndexError& e) {
    return absl::OutOfRangeError(e.what_without_backtrace());
  } catch (const c10::ValueError& e) {
    return absl::InvalidArgumentError(e.what_without_backtrace());
  } catch (const c10::LinAlgError& e) {  // of what was asked for there is none: no factorization, no solution
    return absl::NotFoundError(e.what_without_backtrace());
  } catch (const c10::NotImplementedError& e) {
    return absl::UnimplementedError(e.what_without_backtrace());
  } catch (const c10::Error& e) {
    return absl::InternalError(e.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("the host is out of memory");
  } catch (const std::exception& e) {
    return absl::InternalError(e.what());
  } catch (...) {
    return absl::InternalError("an exception of unknown type");
  }
}

}  // namespace tpu
