/*
Copyright The AlterShield Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

	http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package judge

import "math/bits"

// IsLook reports whether pods are compared after a batch, counted from 1: at each power of two.
func IsLook(batch int) bool { return batch > 0 && bits.OnesCount(uint(batch)) == 1 }

// LookAlpha returns the share of alpha that each look at a workload with some pods may spend: it has at most as many batches. All looks
// may spend the same. The shares of O'Brien and Fleming would leave nothing for the first batches, of which most is hoped.
func LookAlpha(alpha float64, pods int) float64 {
	return alpha / float64(bits.Len(uint(max(pods, 1))))
}
