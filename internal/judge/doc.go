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

// Package judge compares the pods of a new version with those of the version before. It is pure: the caller brings numbers and keeps
// the state.
//
//   - counts.go: errors of requests, and other events, minute by minute
//   - values.go: values of pods, such as latency
//   - restarts.go: restarts of pods, without requests
//   - alpha.go: how often a healthy release may fail, shared by metrics and looks
//   - words.go: the sentences that explain a result
//
// The unit is the pod: minutes of one pod are not independent of each other. [Counts] is a test martingale for each of five ratios,
// tempered by how much pods differ ([Howard et al. 2021] describe such processes), with an F-test for large differences. [Values] is the
// moderated t-test of [Smyth 2004] with a second vote by ranks. How often healthy releases fail is measured by hack/judge.
//
// [Howard et al. 2021]: https://doi.org/10.1214/20-AOS1991
// [Smyth 2004]: https://doi.org/10.2202/1544-6115.1027
package judge
