// RUN: tpu-opt %s --lower-aten --canonicalize --cse --split-input-file | FileCheck %s

// Of causal attention over many positions, blocks of queries leave out the keys that none of them sees.
// CHECK-LABEL: @causal
// CHECK: tpu.dot {{.*}}result_lower{{.*}} -> tensor<1x2x384x384xf32>
// CHECK: tpu.dot {{.*}}lhs_lower
// CHECK: tpu.dot {{.*}} -> tensor<1x2x384x768xf32>
// CHECK: tpu.dot {{.*}} -> tensor<1x2x232x1000xf32>
// CHECK: tpu.concat {{.*}} -> tensor<1x2x1000x64xbf16>
func.func @causal(%q: tensor<1x2x1000x64xbf16>, %k: tensor<1x2x1000x64xbf16>, %v: tensor<1x2x1000x64xbf16>)
    -> (tensor<1x2x1000x64xbf16>, tensor<1x2x1000xf32>) {
  %0:2 = tpu.aten "aten::_scaled_dot_product_flash_attention_for_cpu"(%q, %k, %v)
      [#tpu.tensor<0>, #tpu.tensor<1>, #tpu.tensor<2>, 0.0 : f64, true, unit, unit] in f32
      : (tensor<1x2x1000x64xbf16>, tensor<1x2x1000x64xbf16>, tensor<1x2x1000x64xbf16>)
      -> (tensor<1x2x1000x64xbf16>, tensor<1x2x1000xf32>)
  return %0#0, %0#1 : tensor<1x2x1000x64xbf16>, tensor<1x2x1000xf32>
}

// -----

// Where every query sees all keys, there is nothing to leave out.
// CHECK-LABEL: @every
// CHECK: tpu.dot {{.*}} -> tensor<1x2x1000x1000xf32>
// CHECK-NOT: tpu.concat
func.func @every(%q: tensor<1x2x1000x64xbf16>, %k: tensor<1x2x1000x64xbf16>, %v: tensor<1x2x1000x64xbf16>)
    -> (tensor<1x2x1000x64xbf16>, tensor<1x2x1000xf32>) {
  %0:2 = tpu.aten "aten::_scaled_dot_product_flash_attention_for_cpu"(%q, %k, %v)
      [#tpu.tensor<0>, #tpu.tensor<1>, #tpu.tensor<2>, 0.0 : f64, false, unit, unit] in f32
      : (tensor<1x2x1000x64xbf16>, tensor<1x2x1000x64xbf16>, tensor<1x2x1000x64xbf16>)
      -> (tensor<1x2x1000x64xbf16>, tensor<1x2x1000xf32>)
  return %0#0, %0#1 : tensor<1x2x1000x64xbf16>, tensor<1x2x1000xf32>
}
