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

// Package admission decides about requests to write a workload: which parts it changes, and which requests it denies. Its
// functions are pure; package webhooks reads their input and answers the API server.
//
//	request.go             a request
//	denial.go              the message of a denial
//	undo.go                a user releases a good version again
//	rollout.go             the operator's halt and hold
//	optout.go              a workload leaves the defense
//	checks.go              checks of policies before a release is stored
//	unknown.go             labels and annotations without effect
//	mutate.go              all of it, in the order of a request
package admission
