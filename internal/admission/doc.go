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

// Package admission decides about requests to write a workload: what of them is changed, and which are denied. Its functions are
// pure; package webhooks reads what they need and answers the API server.
//
//	request.go             a request, and what it asks for
//	denial.go              why a request is denied, and what to do
//	undo.go                a user releases a good version again
//	rollout.go             what becomes of the operator's halt and hold
//	optout.go              a workload leaves the defense
//	checks.go              checks of policies before a release is stored
//	unknown.go             labels and annotations that have no effect
//	mutate.go              all of it, in the order of a request
package admission
