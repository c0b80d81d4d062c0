#include "runtime/host/matrix_library.h"

namespace tpu::host {
namespace {
MatrixLibrary the_library;
}  // namespace

void SetMatrixLibrary(const MatrixLibrary& library) { the_library = library; }
const MatrixLibrary& GetMatrixLibrary() { return the_library; }

}  // namespace tpu::host
