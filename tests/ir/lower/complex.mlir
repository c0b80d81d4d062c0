// RUN: tpu-opt %s --lower-aten --canonicalize --cse --split-input-file | FileCheck %s

// What is linear is computed of the parts.
// CHECK-LABEL: @add
// CHECK-DAG: %[[A:.*]] = tpu.real %arg0 : tensor<4xcomplex<f32>>
// CHECK-DAG: %[[C:.*]] = tpu.real %arg1
// CHECK-DAG: %[[B:.*]] = tpu.imaginary %arg0
// CHECK-DAG: %[[D:.*]] = tpu.imaginary %arg1
// CHECK-DAG: %[[REAL:.*]] = tpu.add %[[A]], %[[C]] : tensor<4xf32>
// CHECK-DAG: %[[IMAGINARY:.*]] = tpu.add %[[B]], %[[D]] : tensor<4xf32>
// CHECK: %[[SUM:.*]] = tpu.complex %[[REAL]], %[[IMAGINARY]] : tensor<4xf32>
// CHECK: return %[[SUM]]
func.func @add(%x: tensor<4xcomplex<f32>>, %y: tensor<4xcomplex<f32>>) -> tensor<4xcomplex<f32>> {
  %0 = tpu.aten "aten::add.Tensor"(%x, %y) [#tpu.tensor<0>, #tpu.tensor<1>] in complex<f32>
      : (tensor<4xcomplex<f32>>, tensor<4xcomplex<f32>>) -> tensor<4xcomplex<f32>>
  return %0 : tensor<4xcomplex<f32>>
}

// -----
// A product by a complex attribute: four products of parts; what goes through a complex number leaves no trace.
// CHECK-LABEL: @mul_neg
// CHECK-COUNT-4: tpu.mul
// CHECK-COUNT-2: tpu.neg
// CHECK: tpu.complex
// CHECK-NOT: tpu.real
// CHECK: return
func.func @mul_neg(%x: tensor<4xcomplex<f32>>) -> tensor<4xcomplex<f32>> {
  %0 = tpu.aten "aten::mul.Scalar"(%x) [#tpu.tensor<0>, array<f64: 2.0, 3.0>] in complex<f32>
      : (tensor<4xcomplex<f32>>) -> tensor<4xcomplex<f32>>
  %1 = tpu.aten "aten::neg"(%0) [#tpu.tensor<0>] in complex<f32>
      : (tensor<4xcomplex<f32>>) -> tensor<4xcomplex<f32>>
  return %1 : tensor<4xcomplex<f32>>
}

// -----
// A factor that scales the sum is real: a complex one is not read as one.
// CHECK-LABEL: @complex_alpha
// CHECK: tpu.aten "aten::add.Tensor"
func.func @complex_alpha(%x: tensor<4xcomplex<f32>>, %y: tensor<4xcomplex<f32>>) -> tensor<4xcomplex<f32>> {
  %0 = tpu.aten "aten::add.Tensor"(%x, %y) [#tpu.tensor<0>, #tpu.tensor<1>, array<f64: 2.0, 3.0>] in complex<f32>
      : (tensor<4xcomplex<f32>>, tensor<4xcomplex<f32>>) -> tensor<4xcomplex<f32>>
  return %0 : tensor<4xcomplex<f32>>
}

// -----
// CHECK-LABEL: @parts_of_parts
// CHECK-NEXT: return %arg0, %arg1, %arg2
func.func @parts_of_parts(%x: tensor<4xf32>, %y: tensor<4xf32>, %z: tensor<4xcomplex<f32>>)
    -> (tensor<4xf32>, tensor<4xf32>, tensor<4xcomplex<f32>>) {
  %0 = tpu.complex %x, %y : tensor<4xf32>
  %1 = tpu.real %0 : tensor<4xcomplex<f32>>
  %2 = tpu.imaginary %0 : tensor<4xcomplex<f32>>
  %3 = tpu.real %z : tensor<4xcomplex<f32>>
  %4 = tpu.imaginary %z : tensor<4xcomplex<f32>>
  %5 = tpu.complex %3, %4 : tensor<4xf32>
  return %1, %2, %5 : tensor<4xf32>, tensor<4xf32>, tensor<4xcomplex<f32>>
}
