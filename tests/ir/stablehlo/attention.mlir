// RUN: tpu-opt --emit-stablehlo %s | FileCheck %s

// Attention with more scores than a device should hold at a time is computed in blocks of queries, here two.
// CHECK-LABEL: module @every
// CHECK-NOT: 16384x16384
// CHECK-COUNT-2: "stablehlo.dot_general"{{.*}} -> tensor<1x2x8192x16384xf32>
// CHECK: "stablehlo.concatenate"
func.func @every(%q: tensor<1x2x16384x64xbf16>, %k: tensor<1x2x16384x64xbf16>, %v: tensor<1x2x16384x64xbf16>)
    -> (tensor<1x2x16384x64xbf16>, tensor<1x2x16384xf32>) {
  %0:2 = tpu.aten "aten::_scaled_dot_product_flash_attention_for_cpu"(%q, %k, %v)
      [#tpu.tensor<0>, #tpu.tensor<1>, #tpu.tensor<2>, 0.0 : f64, false, unit, unit] in f32
      : (tensor<1x2x16384x64xbf16>, tensor<1x2x16384x64xbf16>, tensor<1x2x16384x64xbf16>)
      -> (tensor<1x2x16384x64xbf16>, tensor<1x2x16384xf32>)
  return %0#0, %0#1 : tensor<1x2x16384x64xbf16>, tensor<1x2x16384xf32>
}

// Causal queries leave out the keys that none of their block sees; gradients of keys are sums over the blocks, in f32.
// CHECK-LABEL: module @causal_gradients
// CHECK: "stablehlo.dot_general"{{.*}} -> tensor<1x2x8192x8192xf32>
// CHECK: "stablehlo.dot_general"{{.*}} -> tensor<1x2x8192x64xf32>
// CHECK: "stablehlo.pad"{{.*}} -> tensor<1x2x16384x64xf32>
// CHECK: "stablehlo.dot_general"{{.*}} -> tensor<1x2x8192x16384xf32>
// CHECK: "stablehlo.dot_general"{{.*}} -> tensor<1x2x16384x64xf32>
func.func @causal_gradients(%dy: tensor<1x2x16384x64xbf16>, %q: tensor<1x2x16384x64xbf16>,
    %k: tensor<1x2x16384x64xbf16>, %v: tensor<1x2x16384x64xbf16>, %o: tensor<1x2x16384x64xbf16>,
    %l: tensor<1x2x16384xf32>)
    -> (tensor<1x2x16384x64xbf16>, tensor<1x2x16384x64xbf16>, tensor<1x2x16384x64xbf16>) {
  %0:3 = tpu.aten "aten::_scaled_dot_product_flash_attention_for_cpu_backward"(%dy, %q, %k, %v, %o, %l)
      [#tpu.tensor<0>, #tpu.tensor<1>, #tpu.tensor<2>, #tpu.tensor<3>, #tpu.tensor<4>, #tpu.tensor<5>, 0.0 : f64, true,
       unit, unit] in f32
      : (tensor<1x2x16384x64xbf16>, tensor<1x2x16384x64xbf16>, tensor<1x2x16384x64xbf16>, tensor<1x2x16384x64xbf16>,
         tensor<1x2x16384x64xbf16>, tensor<1x2x16384xf32>)
      -> (tensor<1x2x16384x64xbf16>, tensor<1x2x16384x64xbf16>, tensor<1x2x16384x64xbf16>)
  return %0#0, %0#1, %0#2 : tensor<1x2x16384x64xbf16>, tensor<1x2x16384x64xbf16>, tensor<1x2x16384x64xbf16>
}
