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

// Package defense decides what becomes of a release and of a workload, by pure functions of what was observed and of the time.
// Nothing here talks to an API server, reads a clock, logs or keeps state: controllers load, call these functions and apply what they
// return. docs/reference/glossary.md has the words.
//
//	admitted.go enrolment.go leaving.go
//	             what is recorded of a workload, and how it leaves
//	record.go    what a decision about a release is made from, and leads to
//	release_*.go fold.go defended.go waiting.go
//	             one matter of a release each
//	decide.go    what becomes of a release
package defense
