// One registration function for each family file of this folder; registry.cc calls them all.
#pragma once

namespace tpu::aten {

class Registry;

void RegisterStorage(Registry& r);
void RegisterElementwise(Registry& r);
void RegisterActivation(Registry& r);
void RegisterCompare(Registry& r);
void RegisterReduce(Registry& r);
void RegisterDistance(Registry& r);
void RegisterScan(Registry& r);
void RegisterMatmul(Registry& r);
void RegisterConvolution(Registry& r);
void RegisterFft(Registry& r);
void RegisterLinalg(Registry& r);
void RegisterSort(Registry& r);
void RegisterShape(Registry& r);
void RegisterFactory(Registry& r);
void RegisterIndex(Registry& r);
void RegisterBags(Registry& r);
void RegisterCompact(Registry& r);
void RegisterNorm(Registry& r);
void RegisterSoftmax(Registry& r);
void RegisterLoss(Registry& r);
void RegisterPool(Registry& r);
void RegisterResample(Registry& r);
void RegisterGridSample(Registry& r);
void RegisterSpecial(Registry& r);
void RegisterRandom(Registry& r);
void RegisterForeach(Registry& r);
void RegisterOptim(Registry& r);
void RegisterAttention(Registry& r);
void RegisterComplex(Registry& r);  // after the others
void RegisterRecurrent(Registry& r);

}  // namespace tpu::aten
