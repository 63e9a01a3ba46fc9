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

// maxLooks are those of a release whose number of batches is not known.
const maxLooks = 11

// IsLook reports whether values are compared after a batch, counted from 1: at each power of two, and at the last one.
func IsLook(batch int, last bool) bool { return last || batch > 0 && bits.OnesCount(uint(batch)) == 1 }

// LookAlpha returns the share of alpha that each look of a release may spend; batches is 0 if their number is not known. All looks may
// spend the same: the shares of O'Brien and Fleming would leave nothing for the first batches, of which most is hoped.
func LookAlpha(alpha float64, batches int) float64 {
	looks := bits.Len(uint(max(batches, 0)))
	if looks == 0 || looks > maxLooks {
		return alpha / maxLooks
	}
	if bits.OnesCount(uint(batches)) > 1 {
		looks++ // the last one
	}
	return alpha / float64(looks)
}
