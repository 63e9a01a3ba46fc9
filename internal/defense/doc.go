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

// Package defense decides about releases and workloads, by pure functions of the state of the cluster and of the time.
// Nothing here calls an API server, reads a clock, logs or keeps state: controllers load, call these functions and
// apply the returned plans. docs/reference/glossary.md defines the words.
//
//	admitted.go enrolment.go leaving.go
//	             the record of a workload, and its end
//	record.go    the input and the plan of a decision about a release
//	release_*.go fold.go defended.go waiting.go
//	             one matter of a release each
//	decide.go    the steps of a decision about a release
package defense
